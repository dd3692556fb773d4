"""What a cell can be asked, one method each. Made from the OpenAPI document: do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._path import at

if TYPE_CHECKING:
    from .client import Event


class Operations:
    def _call(self, method: str, path: str, query: dict[str, Any], body: Any = None, **how: Any) -> Any:
        raise NotImplementedError

    def _watch(self, path: str, query: dict[str, Any], last: str | None) -> Iterator[Event]:
        raise NotImplementedError

    def list_jobs(self, *, selector: Any = None, user: Any = None, state: Any = None, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """Jobs, oldest first."""
        return self._call("GET", "/v1/jobs", {"selector": selector, "user": user, "state": state, "limit": limit, "after": after, "consistent": consistent})

    def submit_job(self, body: dict[str, Any], *, key: str | None = None) -> Any:
        """Submit a job."""
        return self._call("POST", "/v1/jobs", {}, body, keyed=True, key=key)

    def apply_job(self, body: dict[str, Any], *, dry_run: Any = None, again: Any = None, expect: int | None = None, key: str | None = None) -> Any:
        """Make this job so: submit it if none of its name lives, open a rolling update if it differs, leave it alone if it is so already. An update that is complete is closed first. `expect` 0: none lives. While the job is stopping, details name it as `stopping_job`: ask again when it is over. A batch job that has ended with this spec stays ended, unless `again`."""
        return self._call("POST", "/v1/apply", {"dry_run": dry_run, "again": again}, body, expect=expect, keyed=True, key=key)

    def get_job(self, user: str | int, job: str | int, *, consistent: Any = None) -> Any:
        """One job."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}", {"consistent": consistent})

    def update_job(self, user: str | int, job: str | int, body: dict[str, Any], *, expect: int | None = None, key: str | None = None) -> Any:
        """Open a rolling update to this spec."""
        return self._call("PUT", f"/v1/jobs/{at(user)}/{at(job)}", {}, body, expect=expect, keyed=True, key=key)

    def stop_job(self, user: str | int, job: str | int, *, notice: Any = None, expect: int | None = None, key: str | None = None) -> Any:
        """Stop the job and all its tasks."""
        return self._call("DELETE", f"/v1/jobs/{at(user)}/{at(job)}", {"notice": notice}, expect=expect, keyed=True, key=key)

    def stop_task(self, user: str | int, job: str | int, index: str | int, *, notice: Any = None, expect: int | None = None, key: str | None = None) -> Any:
        """Stop one task for good; its job goes on without it."""
        return self._call("DELETE", f"/v1/jobs/{at(user)}/{at(job)}/tasks/{at(index)}", {"notice": notice}, expect=expect, keyed=True, key=key)

    def get_task(self, user: str | int, job: str | int, index: str | int, *, consistent: Any = None) -> Any:
        """One task."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}/tasks/{at(index)}", {"consistent": consistent})

    def resize_job(self, user: str | int, job: str | int, body: dict[str, Any], *, dry_run: Any = None, expect: int | None = None, key: str | None = None) -> Any:
        """Change the number of tasks, or what each may use while it runs: only those that no longer fit where they are move. What is left out stays. An update that is complete is closed first."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/resize", {"dry_run": dry_run}, body, expect=expect, keyed=True, key=key)

    def restart_job(self, user: str | int, job: str | int, *, key: str | None = None) -> Any:
        """Restart the tasks that run, where they are and with the spec they have, as many at a time as an update would; `restarting` of the job counts those to come."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/restart", {}, keyed=True, key=key)

    def restart_task(self, user: str | int, job: str | int, index: str | int, *, key: str | None = None) -> Any:
        """Restart one task where it is, as soon as the budget of its job allows."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/tasks/{at(index)}/restart", {}, keyed=True, key=key)

    def start_failed_tasks(self, user: str | int, job: str | int, *, key: str | None = None) -> Any:
        """Run the tasks that failed for good again. The job may be over: it goes on then, and is admitted as if it were submitted."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/start", {}, keyed=True, key=key)

    def start_task(self, user: str | int, job: str | int, index: str | int, *, key: str | None = None) -> Any:
        """Run one task again that was stopped or has ended. Its job may be over, too."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/tasks/{at(index)}/start", {}, keyed=True, key=key)

    def undo_update(self, user: str | int, job: str | int, *, expect: int | None = None, key: str | None = None) -> Any:
        """Roll the open update back."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/undo", {}, expect=expect, keyed=True, key=key)

    def close_update(self, user: str | int, job: str | int, *, expect: int | None = None, key: str | None = None) -> Any:
        """Close the open update; it can no longer be undone."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/close", {}, expect=expect, keyed=True, key=key)

    def promote_update(self, user: str | int, job: str | int, *, expect: int | None = None, key: str | None = None) -> Any:
        """Give the version that canaries try to all tasks."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/promote", {}, expect=expect, keyed=True, key=key)

    def finish_update(self, user: str | int, job: str | int, *, expect: int | None = None, key: str | None = None) -> Any:
        """Give the job's version to the tasks that its update skipped, also after it was closed. `max_update_disruptions` does not hold for them."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/finish", {}, expect=expect, keyed=True, key=key)

    def revert_job(self, user: str | int, job: str | int, body: dict[str, Any], *, dry_run: Any = None, expect: int | None = None, key: str | None = None) -> Any:
        """Open a rolling update to the spec of an earlier version. An update that is complete is closed first; one that came from that version is undone."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/revert", {"dry_run": dry_run}, body, expect=expect, keyed=True, key=key)

    def list_versions(self, user: str | int, job: str | int, *, consistent: Any = None) -> Any:
        """The versions of a job that are kept: when, by whom, and what each changed."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}/versions", {"consistent": consistent})

    def diff_versions(self, user: str | int, job: str | int, *, version: Any = None, against: Any = None, consistent: Any = None) -> Any:
        """What differs between two versions of a job, field by field."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}/diff", {"version": version, "against": against, "consistent": consistent})

    def plan_jobs(self, body: dict[str, Any], *, consistent: Any = None) -> Any:
        """What submitting or updating these jobs, one after the other, would do: the differences, what happens to which task, where tasks would go, who would be evicted, what is charged. Nothing changes."""
        return self._call("POST", "/v1/plan", {"consistent": consistent}, body)

    def shapes(self, body: dict[str, Any], *, consistent: Any = None) -> Any:
        """Which shapes of task find a place as the cell is now, how many of each, and the largest; or how many more tasks of a job. Nothing changes."""
        return self._call("POST", "/v1/shapes", {"consistent": consistent}, body)

    def explain_job(self, user: str | int, job: str | int, *, consistent: Any = None) -> Any:
        """Why tasks of a job wait or fail, those alike together."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}/explain", {"consistent": consistent})

    def get_scale(self, user: str | int, job: str | int, *, consistent: Any = None) -> Any:
        """How a job is scaled: who chooses its size, what the rules ask for, and why."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}/scale", {"consistent": consistent})

    def set_scale_mode(self, user: str | int, job: str | int, body: dict[str, Any], *, key: str | None = None) -> Any:
        """Say who chooses the size of a scaled job: its owner, or the cell."""
        return self._call("POST", f"/v1/jobs/{at(user)}/{at(job)}/scale", {}, body, keyed=True, key=key)

    def list_tasks(self, user: str | int, job: str | int, *, state: Any = None, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """Tasks of a job, by index."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}/tasks", {"state": state, "limit": limit, "after": after, "consistent": consistent})

    def explain_task(self, user: str | int, job: str | int, index: str | int, *, consistent: Any = None) -> Any:
        """Why a task waits, why it is where it is, or how it ended."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}/tasks/{at(index)}/explain", {"consistent": consistent})

    def read_output(self, user: str | int, job: str | int, index: str | int, *, stream: Any = None, attempt: Any = None, from_: Any = None, lines: Any = None, tail: Any = None, since: Any = None, parts: Any = None) -> Any:
        """A piece of what a task wrote, from the machine it is or was on."""
        return self._call("GET", f"/v1/jobs/{at(user)}/{at(job)}/tasks/{at(index)}/output", {"stream": stream, "attempt": attempt, "from": from_, "lines": lines, "tail": tail, "since": since, "parts": parts})

    def watch_output(self, user: str | int, job: str | int, index: str | int, *, stream: Any = None, attempt: Any = None, lines: Any = None, tail: Any = None, since: Any = None, parts: Any = None, after: Any = None, last_event_id: str | None = None) -> Iterator[Event]:
        """What a task writes, from one attempt to the next. Events: `output` (a piece), `silent` (its machine does not answer; tried again), `end` (the task is dead)."""
        return self._watch(f"/v1/watch/output/{at(user)}/{at(job)}/{at(index)}", {"stream": stream, "attempt": attempt, "lines": lines, "tail": tail, "since": since, "parts": parts, "after": after}, last_event_id)

    def watch_jobs(self, *, selector: Any = None, user: Any = None, after: Any = None, last_event_id: str | None = None) -> Iterator[Event]:
        """Jobs as they change. Events: `job` (a job), `gone` (purged; data has its key), `synced` (what was there has been sent), `reset` (events were missed; all jobs follow)."""
        return self._watch("/v1/watch/jobs", {"selector": selector, "user": user, "after": after}, last_event_id)

    def watch_job_rows(self, *, selector: Any = None, user: Any = None, after: Any = None, last_event_id: str | None = None) -> Iterator[Event]:
        """The same in short, for those who show many: what a list has of a job, and not its spec."""
        return self._watch("/v1/watch/job_rows", {"selector": selector, "user": user, "after": after}, last_event_id)

    def look_up_job(self, user: str | int, job: str | int, *, consistent: Any = None) -> Any:
        """Where the healthy tasks of a job are reached."""
        return self._call("GET", f"/v1/names/{at(user)}/{at(job)}", {"consistent": consistent})

    def watch_names(self, user: str | int, job: str | int, *, last_event_id: str | None = None) -> Iterator[Event]:
        """Where the healthy tasks of a job are reached, now and at every change. Events: `name` (all of it, as the lookup says), `gone` (the job was purged; the last)."""
        return self._watch(f"/v1/watch/names/{at(user)}/{at(job)}", {}, last_event_id)

    def prometheus_targets(self, *, selector: Any = None, consistent: Any = None) -> Any:
        """Ports of healthy tasks, for Prometheus' HTTP service discovery."""
        return self._call("GET", "/v1/prometheus", {"selector": selector, "consistent": consistent})

    def list_machines(self, *, selector: Any = None, status: Any = None, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """Machines, oldest first."""
        return self._call("GET", "/v1/machines", {"selector": selector, "status": status, "limit": limit, "after": after, "consistent": consistent})

    def add_machine(self, body: dict[str, Any], *, key: str | None = None) -> Any:
        """Add a machine."""
        return self._call("POST", "/v1/machines", {}, body, keyed=True, key=key)

    def get_machine(self, machine: str | int, *, consistent: Any = None) -> Any:
        """One machine."""
        return self._call("GET", f"/v1/machines/{at(machine)}", {"consistent": consistent})

    def update_machine(self, machine: str | int, body: dict[str, Any], *, expect: int | None = None, key: str | None = None) -> Any:
        """Change a machine."""
        return self._call("PUT", f"/v1/machines/{at(machine)}", {}, body, expect=expect, keyed=True, key=key)

    def remove_machine(self, machine: str | int, *, force: Any = None, expect: int | None = None, key: str | None = None) -> Any:
        """Remove a machine. Refused while it is up with tasks on it, unless forced."""
        return self._call("DELETE", f"/v1/machines/{at(machine)}", {"force": force}, expect=expect, keyed=True, key=key)

    def list_machine_tasks(self, machine: str | int, *, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """What is bound to a machine, what is on its way out too."""
        return self._call("GET", f"/v1/machines/{at(machine)}/tasks", {"limit": limit, "after": after, "consistent": consistent})

    def get_machine_packages(self, machine: str | int) -> Any:
        """The packages of a machine and who gave them, asked of its agent."""
        return self._call("GET", f"/v1/machines/{at(machine)}/packages", {})

    def start_drain(self, machine: str | int, *, within: Any = None, expect: int | None = None, key: str | None = None) -> Any:
        """Move everything away, within the jobs' budgets, and place nothing new."""
        return self._call("POST", f"/v1/machines/{at(machine)}/drain", {"within": within}, expect=expect, keyed=True, key=key)

    def stop_drain(self, machine: str | int, *, expect: int | None = None, key: str | None = None) -> Any:
        """Let the machine take work again."""
        return self._call("POST", f"/v1/machines/{at(machine)}/undrain", {}, expect=expect, keyed=True, key=key)

    def list_resources(self, *, user: Any = None, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """Resources applications made up."""
        return self._call("GET", "/v1/resources", {"user": user, "limit": limit, "after": after, "consistent": consistent})

    def get_resource(self, namespace: str | int, name: str | int, *, consistent: Any = None) -> Any:
        """One resource."""
        return self._call("GET", f"/v1/resources/{at(namespace)}/{at(name)}", {"consistent": consistent})

    def set_resource(self, namespace: str | int, name: str | int, body: dict[str, Any], *, key: str | None = None) -> Any:
        """Create, change or renew a resource on chosen nodes."""
        return self._call("PUT", f"/v1/resources/{at(namespace)}/{at(name)}", {}, body, keyed=True, key=key)

    def delete_resource(self, namespace: str | int, name: str | int, *, key: str | None = None) -> Any:
        """Remove a resource everywhere; holders stay."""
        return self._call("DELETE", f"/v1/resources/{at(namespace)}/{at(name)}", {}, keyed=True, key=key)

    def cluster_status(self, *, summary: Any = None, consistent: Any = None) -> Any:
        """Capacity and what is available, node by node, and which nodes failed."""
        return self._call("GET", "/v1/cluster_status", {"summary": summary, "consistent": consistent})

    def list_alarms(self) -> Any:
        """What a person should look at: machines nobody hears, clocks that are apart, disks that are full or damaged, no leader. Whichever replica is asked asks the leader and the others."""
        return self._call("GET", "/v1/alarms", {})

    def find(self, *, name: Any = None, near: Any = None, consistent: Any = None) -> Any:
        """What a name can mean: what is called so, or else what begins so; 50 at most."""
        return self._call("GET", "/v1/find", {"name": name, "near": near, "consistent": consistent})

    def overview(self, *, consistent: Any = None) -> Any:
        """The whole cell in one small picture: a column for each property of its machines."""
        return self._call("GET", "/v1/overview", {"consistent": consistent})

    def watch_overview(self, *, last_event_id: str | None = None) -> Iterator[Event]:
        """The picture, then what changes in it, at most once a second. Events: `overview`."""
        return self._watch("/v1/watch/overview", {}, last_event_id)

    def batch(self, body: dict[str, Any], *, key: str | None = None) -> Any:
        """Many changes in one call, a verdict for each."""
        return self._call("POST", "/v1/batch", {}, body, keyed=True, key=key)

    def list_users(self, *, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """Users, oldest first."""
        return self._call("GET", "/v1/users", {"limit": limit, "after": after, "consistent": consistent})

    def add_user(self, body: dict[str, Any], *, key: str | None = None) -> Any:
        """Add a user."""
        return self._call("POST", "/v1/users", {}, body, keyed=True, key=key)

    def get_user(self, user: str | int, *, consistent: Any = None) -> Any:
        """One user."""
        return self._call("GET", f"/v1/users/{at(user)}", {"consistent": consistent})

    def remove_user(self, user: str | int, *, expect: int | None = None, key: str | None = None) -> Any:
        """Remove a user without jobs."""
        return self._call("DELETE", f"/v1/users/{at(user)}", {}, expect=expect, keyed=True, key=key)

    def set_capabilities(self, user: str | int, body: dict[str, Any], *, expect: int | None = None, key: str | None = None) -> Any:
        """Say what a user may do."""
        return self._call("PUT", f"/v1/users/{at(user)}/capabilities", {}, body, expect=expect, keyed=True, key=key)

    def set_quota(self, user: str | int, band: str | int, body: dict[str, Any], *, expect: int | None = None, key: str | None = None) -> Any:
        """Grant quota in one band."""
        return self._call("PUT", f"/v1/users/{at(user)}/quota/{at(band)}", {}, body, expect=expect, keyed=True, key=key)

    def remove_quota(self, user: str | int, band: str | int, *, expect: int | None = None, key: str | None = None) -> Any:
        """Take the quota of one band away."""
        return self._call("DELETE", f"/v1/users/{at(user)}/quota/{at(band)}", {}, expect=expect, keyed=True, key=key)

    def list_user_tokens(self, user: str | int, *, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """Tokens of a user, without their secrets."""
        return self._call("GET", f"/v1/users/{at(user)}/tokens", {"limit": limit, "after": after, "consistent": consistent})

    def add_user_token(self, user: str | int, body: dict[str, Any]) -> Any:
        """Make a token for a user; shown once."""
        return self._call("POST", f"/v1/users/{at(user)}/tokens", {}, body)

    def list_tokens(self, *, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """All tokens, without their secrets."""
        return self._call("GET", "/v1/tokens", {"limit": limit, "after": after, "consistent": consistent})

    def add_join_token(self, body: dict[str, Any]) -> Any:
        """Make a token with which one agent or replica joins once; shown once."""
        return self._call("POST", "/v1/tokens/join", {}, body)

    def revoke_token(self, token: str | int, *, key: str | None = None) -> Any:
        """Make a token worthless."""
        return self._call("DELETE", f"/v1/tokens/{at(token)}", {}, keyed=True, key=key)

    def revoke_part(self, body: dict[str, Any], *, key: str | None = None) -> Any:
        """Stop listening to an agent, replica or scheduler until it joins again."""
        return self._call("POST", "/v1/revocations", {}, body, keyed=True, key=key)

    def list_crons(self, *, user: Any = None, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """Crons, oldest first."""
        return self._call("GET", "/v1/crons", {"user": user, "limit": limit, "after": after, "consistent": consistent})

    def get_cron(self, user: str | int, cron: str | int, *, consistent: Any = None) -> Any:
        """One cron."""
        return self._call("GET", f"/v1/crons/{at(user)}/{at(cron)}", {"consistent": consistent})

    def set_cron(self, user: str | int, cron: str | int, body: dict[str, Any], *, expect: int | None = None, key: str | None = None) -> Any:
        """Create or change a cron."""
        return self._call("PUT", f"/v1/crons/{at(user)}/{at(cron)}", {}, body, expect=expect, keyed=True, key=key)

    def remove_cron(self, user: str | int, cron: str | int, *, expect: int | None = None, key: str | None = None) -> Any:
        """Remove a cron; its jobs stay."""
        return self._call("DELETE", f"/v1/crons/{at(user)}/{at(cron)}", {}, expect=expect, keyed=True, key=key)

    def run_cron(self, user: str | int, cron: str | int, *, key: str | None = None) -> Any:
        """Start a run now, also of a cron that is paused. It counts among the runs: as many are kept, and with `overlap: skip` there is none while the last goes on."""
        return self._call("POST", f"/v1/crons/{at(user)}/{at(cron)}/run", {}, keyed=True, key=key)

    def list_events(self, *, after: Any = None, limit: Any = None) -> Any:
        """What changed, oldest first."""
        return self._call("GET", "/v1/events", {"after": after, "limit": limit})

    def sql(self, body: dict[str, Any]) -> Any:
        """One SELECT over the cell's history of events and usage."""
        return self._call("POST", "/v1/sql", {}, body)

    def watch_events(self, *, after: Any = None, last_event_id: str | None = None) -> Iterator[Event]:
        """What changes, as it happens. Events: `event`; `reset` when some were missed."""
        return self._watch("/v1/watch/events", {"after": after}, last_event_id)

    def list_audit(self, *, after: Any = None, limit: Any = None) -> Any:
        """Who asked for what, and what became of it, oldest first."""
        return self._call("GET", "/v1/audit", {"after": after, "limit": limit})

    def list_checkpoints(self) -> Any:
        """Saved pictures of the state on this replica."""
        return self._call("GET", "/v1/checkpoints", {})

    def save_checkpoint(self) -> Any:
        """Save a picture of the state on this replica."""
        return self._call("POST", "/v1/checkpoints", {})

    def master_status(self) -> Any:
        """The replicas, as this one sees them."""
        return self._call("GET", "/v1/masters", {})

    def add_master(self, body: dict[str, Any]) -> Any:
        """Add a replica that runs; it votes once it has caught up."""
        return self._call("POST", "/v1/masters", {}, body)

    def confirm_master(self, body: dict[str, Any], *, key: str | None = None) -> Any:
        """Let a replica that waits have the authority's key, by its fingerprint."""
        return self._call("POST", "/v1/masters/confirm", {}, body, keyed=True, key=key)

    def remove_master(self, replica: str | int) -> Any:
        """Remove a replica."""
        return self._call("DELETE", f"/v1/masters/{at(replica)}", {})

    def list_blobs(self, *, limit: Any = None, after: Any = None, consistent: Any = None) -> Any:
        """Stored content."""
        return self._call("GET", "/v1/blobs", {"limit": limit, "after": after, "consistent": consistent})

    def put_blob(self, digest: str | int, body: bytes, *, key: str | None = None) -> Any:
        """Store content on a majority of the replicas."""
        return self._call("PUT", f"/v1/blobs/{at(digest)}", {}, body, keyed=True, key=key)

    def get_blob(self, digest: str | int) -> bytes:
        """The content."""
        return self._call("GET", f"/v1/blobs/{at(digest)}", {}, raw=True)

    def remove_blob(self, digest: str | int, *, key: str | None = None) -> Any:
        """Forget content no job names."""
        return self._call("DELETE", f"/v1/blobs/{at(digest)}", {}, keyed=True, key=key)

    def open_api(self) -> Any:
        """This document."""
        return self._call("GET", "/v1/openapi.json", {})

    def metrics(self) -> Any:
        """Prometheus metrics."""
        return self._call("GET", "/metrics", {})

    def health(self) -> Any:
        """The process answers."""
        return self._call("GET", "/healthz", {})

    def ready(self) -> Any:
        """The replica knows a leader and has applied what it knows of."""
        return self._call("GET", "/readyz", {})

    def get_archive(self, *, consistent: Any = None) -> Any:
        """How the archive is doing. The leading master knows: ask with `consistent`."""
        return self._call("GET", "/v1/archive", {"consistent": consistent})

    def list_archived_jobs(self, *, user: Any = None, limit: Any = None, after: Any = None) -> Any:
        """Jobs of the archive by owner and name: one's own, and those of others for users with read_specs."""
        return self._call("GET", "/v1/archive/jobs", {"user": user, "limit": limit, "after": after})

    def get_archived_job(self, user: str | int, job: str | int, *, submitted: Any = None) -> Any:
        """A job of the archive: its spec, its versions, and how its tasks ended."""
        return self._call("GET", f"/v1/archive/jobs/{at(user)}/{at(job)}", {"submitted": submitted})

    def list_archived_logs(self, user: str | int, job: str | int, *, limit: Any = None, after: Any = None) -> Any:
        """Whose output of a job is in the archive, by task and attempt."""
        return self._call("GET", f"/v1/archive/logs/{at(user)}/{at(job)}", {"limit": limit, "after": after})

    def get_archived_log(self, user: str | int, job: str | int, index: str | int, *, submitted: Any = None, attempt: Any = None) -> bytes:
        """What a task wrote, from the archive: gzip of lines of JSON, of which the first says whose it is, and the others are the parts of the output."""
        return self._call("GET", f"/v1/archive/logs/{at(user)}/{at(job)}/{at(index)}", {"submitted": submitted, "attempt": attempt}, raw=True)

    def list_archived_days(self, *, limit: Any = None, after: Any = None) -> Any:
        """Days of history in the archive, by table."""
        return self._call("GET", "/v1/archive/history", {"limit": limit, "after": after})

    def restore_history(self, body: dict[str, Any]) -> Any:
        """Have the tables of `sql` hold days of the archive again, for a while."""
        return self._call("POST", "/v1/archive/history/restore", {}, body)
