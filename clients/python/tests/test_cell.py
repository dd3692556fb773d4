"""The client against a running cell: CELL_ADDR names an open one, CELL_CONTEXTS a file of contexts."""

import os
import threading
import unittest

from cellwright import ApiError, Cell, CellError, Unreachable

SPEC = {
    "name": "three",
    "count": 3,
    "priority": 100,
    "task": {"limits": {"cpu": 100, "ram": 32 << 20}, "command": ["sleep", "1000"]},
}


def job(name, **more):
    return {"owner": "dev", "spec": {**SPEC, "name": name, **more}}


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
