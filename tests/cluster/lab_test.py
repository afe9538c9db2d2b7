#!/usr/bin/env python3
"""The lab itself: what the tests of several nodes rest on."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from lab import Lab, LabError, require, state_of, wait_until

LISTENER = """
import socket, sys
s = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening", flush=True)
while True:
    connection, peer = s.accept()
    data = connection.recv(100)
    connection.sendall(data.upper())
    connection.close()
"""
CALLER = """
import socket, sys
c = socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2]))
c.sendall(b"hello")
c.settimeout(float(sys.argv[2]))
print(c.recv(100).decode())
"""


def call(node, address, seconds="3"):
    return node.run([sys.executable, "-c", CALLER, address, seconds])


class LabTest(unittest.TestCase):
    def setUp(self):
        require()

    def listen(self, node):
        node.spawn([sys.executable, "-c", LISTENER]).wait_output("listening", 10)

    def test_nodes_reach_each_other_by_both_families_and_by_name(self):
        for network in ("bridge", "switch"):
            with self.subTest(network), Lab(["a", "b", "c"], network=network) as lab:
                self.listen(lab["b"])
                for address in ("10.77.0.2", "fd77::2", "b"):
                    self.assertEqual(call(lab["a"], address), (0, "HELLO\n"))

    def test_cut_link_is_silence_and_heals(self):
        with Lab(["a", "b"], network="switch") as lab:
            self.listen(lab["b"])
            lab.cut("b")
            code, output = call(lab["a"], "10.77.0.2", "0.5")
            self.assertEqual(code, 1)
            self.assertIn("timed out", output)
            lab.heal("b")
            self.assertEqual(call(lab["a"], "10.77.0.2"), (0, "HELLO\n"))

    def test_one_way_link_delay_and_loss(self):
        with Lab(["a", "b"], network="switch", seed=7) as lab:
            self.listen(lab["b"])
            self.assertEqual(call(lab["a"], "b"), (0, "HELLO\n"))
            lab.link("b", "a", cut=True)
            self.assertEqual(call(lab["a"], "10.77.0.2", "0.5")[0], 1)
            lab.link("b", "a", cut=False, delay_seconds=0.2)
            start = time.monotonic()
            self.assertEqual(call(lab["a"], "10.77.0.2"), (0, "HELLO\n"))
            self.assertGreater(time.monotonic() - start, 0.4)  # the connection's answer, and the data's
            lab.link("b", "a", delay_seconds=0.0, loss=1.0)
            self.assertEqual(call(lab["a"], "10.77.0.2", "0.5")[0], 1)

    def test_each_node_has_its_own_names_ids_and_mounts(self):
        with Lab(["a", "b"], host_names={"b": "bogus.invalid"}) as lab:
            self.assertEqual(lab["b"].run(["uname", "-n"]), (0, "bogus.invalid\n"))
            lab["b"].set_hosts("10.77.0.9 a\n")
            self.assertIn("10.77.0.9", lab["b"].run(["cat", "/etc/hosts"])[1])
            self.assertIn("10.77.0.1", lab["a"].run(["cat", "/etc/hosts"])[1])
            (lab.shared / "mark").write_text("x")
            self.assertEqual(lab["b"].run(["cat", str(lab.shared / "mark")]), (0, "x"))
            lab["b"].mount_tmpfs(lab.shared, "1m")
            self.assertEqual(lab["b"].run(["ls", str(lab.shared)]), (0, ""))
            self.assertEqual(lab["a"].run(["ls", str(lab.shared)]), (0, "mark\n"))
            self.assertNotEqual(lab["a"].run(["dd", "if=/dev/zero", f"of={lab.shared}/big", "bs=1M", "count=400"])[0], 0)

    def test_processes_are_found_stopped_continued_and_killed(self):
        with Lab(["a", "b"]) as lab:
            shell = lab["a"].spawn(["sh", "-c", "sleep 1000 & sleep 1000 & wait"])
            wait_until(lambda: len(lab["a"].processes()) == 3, 5, "three processes")
            self.assertEqual(lab["b"].processes(), {})
            lab["a"].freeze()
            self.assertEqual({state_of(pid) for pid in lab["a"].processes()}, {"T"})
            lab["a"].thaw()
            wait_until(lambda: "T" not in {state_of(pid) for pid in lab["a"].processes()}, 5, "going on")
            shell.signal(signal.SIGTERM)
            self.assertEqual(shell.wait(5), 128 + signal.SIGTERM)
            self.assertEqual(len(lab["a"].pids_of("sleep")), 2)
            for pid in lab["a"].pids_of("sleep"):
                lab["a"].signal(pid, signal.SIGKILL)
            wait_until(lambda: not lab.processes(), 5, "end of the orphans")

    def test_a_node_goes_and_comes_back(self):
        with Lab(["a", "b"], network="switch") as lab:
            sleeper = lab["b"].spawn(["sleep", "1000"])
            lab["b"].power_off()
            self.assertEqual(sleeper.wait(5), 128 + signal.SIGKILL)
            self.assertRaises(LabError, lab["b"].spawn, ["true"])
            lab.power_on("b")
            self.listen(lab["b"])
            self.assertEqual(call(lab["a"], "b"), (0, "HELLO\n"))

    def test_nothing_is_left_when_the_lab_is_killed(self):
        script = ("import sys; sys.path.insert(0, sys.argv[1])\nfrom lab import Lab\nlab = Lab(['a', 'b'])\n"
                  "lab['a'].spawn(['sh', '-c', 'setsid sleep 1000 & sleep 1000'])\n"
                  "import time\nwhile len(lab['a'].processes()) < 3: time.sleep(0.01)\n"
                  "print(lab.folder, *lab['a'].processes(), lab['a'].init_pid, lab.hub.pid, flush=True)\ntime.sleep(1000)\n")
        here = str(pathlib.Path(__file__).resolve().parent)
        with subprocess.Popen([sys.executable, "-c", script, here], stdout=subprocess.PIPE, text=True) as process:
            folder, *pids = process.stdout.readline().split()
            process.kill()
        self.assertEqual(len(pids), 5)
        wait_until(lambda: all(state_of(int(pid)) in "XZ" for pid in pids), 5, "end of every process of the killed lab")
        with Lab(["a"]):
            self.assertFalse(os.path.exists(folder))


if __name__ == "__main__":
    unittest.main(verbosity=2)
