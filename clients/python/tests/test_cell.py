"""The client against a running cell: CELL_ADDR names an open one, CELL_CONTEXTS a file of contexts.

What a cell does not do when asked, such as hanging up on a request, a stub does in its place.
"""

import json
import os
import socketserver
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from cellwright import ApiError, Cell, CellError, Unknown, Unreachable

SPEC = {
    "name": "three",
    "count": 3,
    "priority": 100,
    "task": {"limits": {"cpu": 100, "ram": 32 << 20}, "command": ["sleep", "1000"]},
}


def job(name, **more):
    return {"owner": "dev", "spec": {**SPEC, "name": name, **more}}


class KnownMasters(unittest.TestCase):
    def test_masters_are_learned_from_those_who_proved_to_be_some_and_newer_lists_count(self):
        cell = Cell("m1:1")
        self.addCleanup(cell.close)
        cell._learn("0.1.5 m1:1,m2:1")
        self.assertEqual(cell._masters, ["m1:1"], "an open master proves nothing")
        cell._tls = mock.sentinel.tls
        cell._learn("0.1.5 m1:1,m2:1")
        self.assertEqual(cell._masters, ["m1:1", "m2:1"])
        cell._learn("0.2.9 m3:1,[fd00::1]:7070")
        self.assertEqual(cell._masters, ["m3:1", "[fd00::1]:7070", "m1:1"])
        self.assertEqual(cell._other("m3:1"), "[fd00::1]:7070")
        many = ",".join(["x:1"] * 17)
        for bad in ["0.1.5 m1:1,m2:1", "0.2.9 x:1", "9.9 x:1", "9.9.9", "9.9.9 x", "9.9.9 x y:1", f"9.9.9 {many}"]:
            cell._learn(bad)
        self.assertEqual(cell._masters, ["m3:1", "[fd00::1]:7070", "m1:1"])


class OpenCell(unittest.TestCase):
    def setUp(self):
        self.cell = Cell()
        self.addCleanup(self.cell.close)

    def test_a_job_is_submitted_seen_and_stopped(self):
        changed = self.cell.submit_job(job("seen"))
        self.assertTrue(changed["changed"])
        found = self.cell.get_job("dev", "seen", consistent=True)
        self.assertEqual(found["item"]["spec"]["count"], 3)
        names = [item["name"] for item in self.cell.pages(self.cell.list_jobs, limit=1, user="dev")]
        self.assertIn("seen", names)
        tasks = list(self.cell.pages(self.cell.list_tasks, "dev", "seen", limit=2))
        self.assertEqual(len(tasks), 3)
        self.cell.stop_job("dev", "seen", expect=found["item"]["version"])

    def test_a_job_is_made_so_whatever_is_there(self):
        created = self.cell.apply_job(job("so", count=1), expect=0)
        self.assertEqual((created["became"], created["version"]), ("created", 1))
        self.assertEqual(self.cell.apply_job(job("so", count=1))["became"], "unchanged")
        tried = self.cell.apply_job(job("so", count=1, priority=110), dry_run=True)
        self.assertEqual((tried["became"], tried["dry_run"]), ("updated", True))
        self.assertEqual([change["path"] for change in tried["changes"]], ["priority"])
        self.assertEqual(self.cell.get_job("dev", "so", consistent=True)["item"]["version"], 1)
        with self.assertRaises(ApiError) as refused:
            self.cell.apply_job(job("so", count=1, priority=110), expect=7)
        self.assertEqual(refused.exception.code, "stale-version")
        self.assertEqual(refused.exception.details["found"], 1)
        self.assertEqual(self.cell.apply_job(job("so", count=1, priority=110), expect=1)["became"], "updated")

    def test_alarms_are_a_list(self):
        alarms = self.cell.list_alarms()
        self.assertEqual(alarms["leader"], alarms["replica"])
        self.assertIsInstance(alarms["items"], list)

    def test_a_change_with_one_key_happens_once(self):
        first = self.cell.submit_job(job("once"), key="python-once")
        again = self.cell.submit_job(job("once"), key="python-once")
        self.assertEqual(first["version"], again["version"])
        with self.assertRaises(ApiError) as refused:
            self.cell.submit_job(job("once", count=4))
        self.assertEqual((refused.exception.status, refused.exception.code), (409, "exists"))

    def test_a_refusal_names_what_is_wrong(self):
        with self.assertRaises(ApiError) as refused:
            self.cell.submit_job(job("bad", colour="red"))
        self.assertEqual(refused.exception.status, 400)
        self.assertIn("colour", refused.exception.message)
        with self.assertRaises(ApiError) as refused:
            self.cell.get_job("dev", "no/such job")
        self.assertIn(refused.exception.status, (400, 404))

    def test_changes_of_many_threads_each_happen(self):
        names = [f"thread-{number}" for number in range(16)]
        failed = []

        def submit(name):
            try:
                self.cell.submit_job(job(name, count=1))
            except CellError as why:
                failed.append(why)

        threads = [threading.Thread(target=submit, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        found = {item["name"] for item in self.cell.pages(self.cell.list_jobs, user="dev")}
        self.assertLessEqual(set(names), found)

    def test_a_watch_shows_what_happens_and_goes_on_from_a_mark(self):
        self.cell.submit_job(job("watched", count=1))
        watch = self.cell.watch_events(after="0")
        first, second = next(watch), next(watch)
        watch.close()
        again = self.cell.watch_events(last_event_id=first.id)
        self.assertEqual(next(again), second)
        again.close()

    def test_text_and_tables_are_answered(self):
        self.assertIn("cell_", self.cell.metrics())
        answer = self.cell.sql({"query": "select 1 as one"})
        self.assertEqual(answer["rows"], [[1]])


class Reaching(unittest.TestCase):
    def test_a_master_that_is_away_is_passed_over(self):
        with Cell("127.0.0.1:1", os.environ["CELL_ADDR"]) as cell:
            self.assertEqual(cell.health().strip(), "ok")

    def test_nobody_there_is_said(self):
        with Cell("127.0.0.1:1", deadline=0.3) as cell, self.assertRaises(Unreachable):
            cell.master_status()

    def test_a_token_is_not_told_to_just_anyone(self):
        with self.assertRaisesRegex(CellError, "authority"):
            Cell("127.0.0.1:1", token="a.b")
        with self.assertRaisesRegex(CellError, "HOST:PORT"):
            Cell("127.0.0.1")


class Stub(socketserver.ThreadingTCPServer):
    """Answers as told: a status and a body, or `None`, which hangs up on what it has read."""

    daemon_threads = True

    def __init__(self, *answers):
        super().__init__(("127.0.0.1", 0), Requests)
        self.answers = list(answers)
        # The connection each request came on, and the request.
        self.asked = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"

    def end(self):
        self.shutdown()
        self.server_close()


class Requests(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline().decode().strip():
            length = 0
            while header := self.rfile.readline().decode().strip().lower():
                if header.startswith("content-length:"):
                    length = int(header.partition(":")[2])
            self.rfile.read(length)
            self.server.asked.append((self.client_address, line.rpartition(" ")[0]))
            # The last answer is given again and again.
            answers = self.server.answers
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if answer is None:
                return
            status, body = answer
            content = json.dumps(body)
            self.wfile.write(
                f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\n"
                f"content-length: {len(content)}\r\n\r\n{content}".encode()
            )


class Sent(unittest.TestCase):
    def stub(self, *answers):
        stub = Stub(*answers)
        self.addCleanup(stub.end)
        return stub

    def test_a_change_that_was_sent_is_not_called_undone(self):
        stub = self.stub(None)
        with Cell(stub.address, deadline=0.3) as cell, self.assertRaises(Unknown):
            cell.submit_job(job("lost"))
        self.assertGreater(len(stub.asked), 1)

    def test_what_followed_does_not_take_the_doubt_back(self):
        refusal = 503, {"code": "no-leader", "message": "nobody leads"}
        for first in (None, (503, {"code": "no-quorum", "message": "too few"})):
            stub = self.stub(first, refusal)
            with Cell(stub.address, deadline=0.3) as cell, self.assertRaises(Unknown):
                cell.submit_job(job("lost"))
        stub = self.stub(refusal)
        with Cell(stub.address, deadline=0.3) as cell, self.assertRaises(ApiError):
            cell.submit_job(job("refused"))

    def test_neither_a_read_nor_a_change_never_sent_is_in_doubt(self):
        stub = self.stub(None)
        with Cell(stub.address, deadline=0.3) as cell, self.assertRaises(Unreachable):
            cell.master_status()
        with Cell("127.0.0.1:1", deadline=0.3) as cell, self.assertRaises(Unreachable):
            cell.submit_job(job("unsent"))

    def test_what_has_no_key_is_sent_once_on_a_connection_of_its_own(self):
        stub = self.stub((200, {}), None)
        with Cell(stub.address, deadline=5) as cell:
            cell.master_status()
            with self.assertRaises(Unknown):
                cell.save_checkpoint()
        (first, _), (second, request) = stub.asked
        self.assertEqual(request, "POST /v1/checkpoints")
        self.assertNotEqual(first, second)


class Given(unittest.TestCase):
    """Whose credentials are used when the masters are found and not named."""

    def settings(self, **variables):
        patch = mock.patch.dict(os.environ, variables)
        patch.start()
        self.addCleanup(patch.stop)
        tls = mock.patch("cellwright.client._tls")
        self.addCleanup(tls.stop)
        return tls.start()

    def test_arguments_are_kept_beside_an_address_that_is_found(self):
        tls = self.settings(CELL_ADDR="127.0.0.1:1")
        with self.assertRaisesRegex(CellError, "authority"):
            Cell(token="mine")
        cell = Cell(token="mine", authority="my authority")
        tls.assert_called_once_with("my authority", None, None)
        self.assertEqual(cell._headers(), {"authorization": "Bearer mine"})

    def test_an_identity_that_is_given_replaces_the_one_of_the_context(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = Path(folder.name, "cellwright", "contexts.toml")
        file.parent.mkdir()
        file.touch(mode=0o600)
        file.write_text(
            'current = "aa"\n[contexts.aa]\nmasters = ["127.0.0.1:1"]\nauthority = "theirs"\n'
            'token = "found"\ncertificate = "found"\nkey = "found"\n'
        )
        tls = self.settings(CELL_ADDR="", XDG_CONFIG_HOME=folder.name)
        self.assertEqual(Cell(token="mine")._headers(), {"authorization": "Bearer mine"})
        tls.assert_called_once_with("theirs", None, None)
        self.assertEqual(Cell()._headers(), {"authorization": "Bearer found"})
        tls.assert_called_with("theirs", "found", "found")
        file.write_text("version = 2\n" + file.read_text())
        with self.assertRaisesRegex(CellError, "is of version 2; allowed: 1;"):
            Cell()


@unittest.skipUnless("CELL_CONTEXTS" in os.environ, "CELL_CONTEXTS names no cell with identities")
class GuardedCell(unittest.TestCase):
    def test_a_context_is_enough(self):
        with Cell.of_context(file=os.environ["CELL_CONTEXTS"]) as cell:
            self.assertEqual(len(cell.master_status()["members"]), 1)
            (master,) = [member["address"] for member in cell.master_status()["members"]]
        with Cell(master, deadline=2) as plain, self.assertRaises(CellError):
            plain.list_jobs()

    def test_a_file_others_can_read_is_refused(self):
        file = os.environ["CELL_CONTEXTS"]
        self.addCleanup(os.chmod, file, 0o600)
        os.chmod(file, 0o644)
        with self.assertRaisesRegex(CellError, "chmod 600"):
            Cell.of_context(file=file)


if __name__ == "__main__":
    unittest.main()
