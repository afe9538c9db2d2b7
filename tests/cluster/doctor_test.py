#!/usr/bin/env python3
"""ddprun doctor as people run it: in bad worlds, and over a real sshd between two nodes."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from lab import DDPRUN, Lab, require

FAKETIME = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
TRAINER = "#!/bin/sh\necho 2.11.0\n"
VERSIONS = "libtorch=2.11.0\ncuda=13.0\n"
DOCTOR_SECONDS_MAX = 10  # without peers


class DoctorTest(unittest.TestCase):
    def setUp(self):
        require()
        self.lab = Lab(["a", "b"])
        self.addCleanup(self.lab.close)
        # A folder with a trainer of known versions beside ddprun.
        self.bin = self.lab.shared / "bin"
        self.bin.mkdir()
        shutil.copy(DDPRUN, self.bin / "ddprun")
        (self.bin / "ddp-worker").write_text(TRAINER, encoding="utf-8")
        (self.bin / "ddp-worker").chmod(0o755)
        (self.bin / "ddp-worker.versions").write_text(VERSIONS, encoding="utf-8")
        self.ddprun = str(self.bin / "ddprun")

    def doctor(self, *options, node="a", prefix=(), env=None, seconds=60):
        """Exit code and the lines, by what they are about: {"shared memory": ("ok", "…")}."""
        process = self.lab[node].spawn([*prefix, self.ddprun, "doctor", *options], env=env)
        code = process.wait(seconds)
        lines = {}
        for line in process.output().splitlines():
            found = re.match(r"(ok|note|problem) +(.+?): (.*)", line)
            if found:
                # Of a peer: "b: clock: …".
                name, text = found[2], found[3]
                if name == "b":
                    second, text = text.split(": ", 1)
                    name = f"b: {second}"
                lines[name] = (found[1], text)
        self.output = process.output()
        return code, lines

    def start_sshd(self, *lines):
        """sshd on b, and the --ssh of a."""
        folder = self.lab.folder / "ssh"
        folder.mkdir(mode=0o700)
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        config = folder / "sshd_config"
        config.write_text("\n".join([f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/authorized", "StrictModes no",
                                     "UsePAM no", "PidFile none", "PermitRootLogin yes", "PrintMotd no", *lines]) + "\n", encoding="utf-8")
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        sshd = self.lab["b"].spawn(["/usr/sbin/sshd", "-D", "-e", "-p", "22", "-f", config])
        sshd.wait_output("Server listening", 10)
        return (f"ssh -F none -i {folder}/user -o BatchMode=yes -o ConnectTimeout=10 -o StrictHostKeyChecking=no "
                f"-o UserKnownHostsFile={folder}/known -o LogLevel=ERROR")

    def test_each_thing_is_one_line_and_all_of_it_ends_soon(self):
        folder = self.lab["a"].folder
        before = sorted(path.name for path in folder.iterdir() if not path.name.startswith("output"))
        code, lines = self.doctor("--run-dir", str(folder / "runs" / "x"), seconds=DOCTOR_SECONDS_MAX)
        self.assertEqual(code, 0, self.output)
        for name in ("NVIDIA driver", "built-in trainer", "Python", "shared memory", "open files", "locked memory", "processes",
                     "cgroups", "hang reports", "run folder", "disk space", "network cards", "NCCL's cards", "Gloo's card", "ports",
                     "names", "clock", "firewall", "secret"):
            self.assertIn(name, lines, self.output)
        self.assertIn("libtorch 2.11.0", lines["built-in trainer"][1])
        self.assertIn("eth0", lines["NCCL's cards"][1])
        self.assertIn("10.77.0.1", lines["ports"][1])
        self.assertEqual(lines["names"][0], "ok")
        self.assertIn("MTU 1500", lines["network cards"][1])
        self.assertEqual(sorted(path.name for path in folder.iterdir() if not path.name.startswith("output")), before)

    def test_json_says_the_same(self):
        process = self.lab["a"].spawn([self.ddprun, "doctor", "--json"])
        self.assertEqual(process.wait(DOCTOR_SECONDS_MAX), 0)
        report = json.loads(process.output())
        self.assertEqual(report["node"], "a")
        self.assertEqual(report["exit_code"], 0)
        self.assertEqual(report["facts"]["libtorch"], "2.11.0")
        self.assertLessEqual({check["level"] for check in report["checks"]}, {"ok", "note"})

    def test_bad_world(self):
        node = self.lab["a"]
        node.mount_tmpfs("/dev/shm", "32m")
        node.set_hosts("127.0.0.1 localhost\n127.0.1.1 a\n")
        tiny = self.lab.shared / "tiny"
        tiny.mkdir()
        node.mount_tmpfs(tiny, "2m")
        (self.bin / "ddp-worker").write_text("#!/bin/sh\necho 'libtorch_cpu.so: cannot open shared object file' >&2\nexit 127\n",
                                             encoding="utf-8")
        secret = self.lab.shared / "secret"
        secret.write_text("correct horse battery staple\n", encoding="utf-8")
        secret.chmod(0o644)
        code, lines = self.doctor(
            "--run-dir", str(tiny / "run"), prefix=["sh", "-c", 'ulimit -n 64; exec "$0" "$@"'],
            env={"DDPRUN_SECRET_FILE": secret, "NCCL_SOCKET_IFNAME": "ib7", "GLOO_SOCKET_IFNAME": "eth9"}, seconds=DOCTOR_SECONDS_MAX)
        self.assertEqual(code, 1, self.output)
        for name, level, text in (
                ("shared memory", "problem", "32 MiB"), ("open files", "problem", "nofile 64"), ("built-in trainer", "problem", "libtorch_cpu.so"),
                ("NCCL's cards", "problem", "ib7"), ("Gloo's card", "problem", "eth9"), ("secret", "problem", "chmod 600"),
                ("names", "note", "GLOO_SOCKET_IFNAME=eth0")):
            self.assertEqual(lines[name][0], level, f"{name}: {self.output}")
            self.assertIn(text, lines[name][1])
        self.assertIn("problem", (lines["run folder"][0], lines.get("disk space", ("",))[0]), self.output)

    def test_a_program_that_hangs_holds_nothing_up(self):
        python = self.lab.shared / "python3"
        python.write_text("#!/bin/sh\nsleep 1000\n", encoding="utf-8")
        python.chmod(0o755)
        code, lines = self.doctor(env={"PYTHON_EXEC": python}, seconds=DOCTOR_SECONDS_MAX)
        self.assertEqual(code, 0, self.output)
        self.assertIn("did not answer", lines["Python"][1])
        self.assertEqual(self.lab.processes(), {})

    def test_a_peer_is_compared_over_ssh(self):
        ssh = self.start_sshd()
        code, lines = self.doctor("--peers", "b", "--ssh", ssh)
        self.assertEqual(code, 0, self.output)
        for name in ("clock", "names", "connections", "versions", "its own checks"):
            self.assertEqual(lines[f"b: {name}"][0], "ok", self.output)
        self.assertRegex(lines["b: connections"][1], "^(10.77.0.1 and 10.77.0.2|fd77::1 and fd77::2) reach each other")
        self.assertEqual(self.lab["b"].pids_of("ddprun"), [])

    def test_a_peer_that_does_not_fit(self):
        if not FAKETIME.exists():
            self.skipTest("needs libfaketime (Debian package faketime)")
        ssh = self.start_sshd(f"SetEnv LD_PRELOAD={FAKETIME} FAKETIME=+1h")
        other = self.lab.shared / "other"
        other.write_text("libtorch=2.10.0\ncuda=12.8\n", encoding="utf-8")
        self.lab["b"].bind(other, self.bin / "ddp-worker.versions")
        self.lab["b"].mount_tmpfs("/dev/shm", "32m")
        self.lab["b"].set_hosts("127.0.0.1 localhost\n")
        code, lines = self.doctor("--peers", "b", "--ssh", ssh)
        self.assertEqual(code, 1, self.output)
        self.assertEqual(lines["b: clock"][0], "problem", self.output)
        self.assertIn("ahead", lines["b: clock"][1])
        self.assertEqual(lines["b: names"][0], "note", self.output)
        self.assertEqual(lines["b: versions"][0], "problem", self.output)
        self.assertIn("LibTorch 2.10.0 there, 2.11.0 here", self.output)
        self.assertIn("CUDA 12.8 there, 13.0 here", self.output)
        self.assertIn("shared memory", lines["b: its own checks"][1])

    def test_a_peer_that_cannot_be_asked(self):
        code, lines = self.doctor("--peers", "b", "--ssh", "ssh -F none -o BatchMode=yes -o ConnectTimeout=2")
        self.assertEqual(code, 1, self.output)
        self.assertEqual(lines["b: asking it"][0], "problem", self.output)
        self.assertIn("Connection refused", lines["b: asking it"][1])

    def test_wrong_options_are_refused(self):
        for options in (["--peers", "-oProxyCommand=x"], ["--peers", ""], ["--nproc", "2"], ["train.cfg"], ["--", "true"]):
            process = self.lab["a"].spawn([self.ddprun, "doctor", *options])
            self.assertEqual(process.wait(10), 2, options)
            self.assertTrue(process.output().startswith("ddprun: "), process.output())


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
