// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-k8s/berth/test/internal/output"
)

// patience is the time limit of short operations and of the start of a cluster, on a busy machine.
const patience = 3 * time.Minute

const workload = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: none, resources: {requests: {cpu: 100m}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: patient}
spec:
  tolerations: [{key: leave, operator: Exists, effect: NoExecute, tolerationSeconds: 3600}]
  containers: [{name: c, image: none}]
`

// TestUpgradeKeepsDataFolder verifies that `berth up` of each version continues with the data
// folder left by the other version: with its objects, certificates, port, and a running countdown.
// The new version is killed the first time. All other runs are stopped normally.
func TestUpgradeKeepsDataFolder(t *testing.T) {
	t.Parallel()
	v := both(t)
	u := &up{T: t, dir: filepath.Join(t.TempDir(), "data"), client: v.new}
	u.begin(v.old)
	first, err := os.ReadFile(filepath.Join(u.dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	u.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig") // a copy kept by a user must remain valid
	if err := os.WriteFile(u.kubeconfig, first, 0o600); err != nil {
		t.Fatal(err)
	}
	u.kubectl(workload, "apply", "-f", "-")
	u.awaits("deployment/web", "{.status.readyReplicas}", "3")
	u.awaits("pod/patient", "{.status.phase}", "Running")
	u.kubectl("", "taint", "nodes", "--all", "leave=now:NoExecute")
	u.awaits("pods", `{.items[?(@.spec.nodeName!="")].metadata.name}`, "patient") // all others must leave
	u.kubectl("", "taint", "nodes", "-l", "topology.kubernetes.io/zone=z2", "leave-")
	u.awaits("deployment/web", "{.status.readyReplicas}", "3")
	before := u.remembered()
	recording := filepath.Join(t.TempDir(), "recording")
	run(t, v.old, "record", "-o", recording, "--once", "--kubeconfig", u.kubeconfig)
	u.end(syscall.SIGINT)
	if text := run(t, v.new, "explain", "pod/patient", "-f", recording); !strings.Contains(text, before["the node of pod patient"]) {
		t.Errorf("of the old version's recording this one says:\n%s", text)
	}

	for i, next := range []struct {
		name, folder string
		end          syscall.Signal
	}{{"new", v.new, syscall.SIGKILL}, {"old", v.old, syscall.SIGINT}, {"new again", v.new, syscall.SIGINT}} {
		u.begin(next.folder)
		replicas := fmt.Sprint(4 + i)
		u.kubectl("", "scale", "deployment/web", "--replicas", replicas)
		u.awaits("deployment/web", "{.status.readyReplicas}", replicas)
		after := u.remembered()
		for what, was := range before {
			if is := after[what]; is != was {
				t.Errorf("%s: %s was %q, and is %q", next.name, what, was, is)
			}
		}
		before = after
		u.end(next.end)
	}
}

// up runs `berth up` of one version after the other on the same data folder.
type up struct {
	*testing.T
	dir, client, kubeconfig string
	cmd                     *exec.Cmd
	said                    *output.Buffer
	ended                   chan struct{}
}

func (u *up) begin(folder string) {
	u.Helper()
	u.cmd = exec.Command(filepath.Join(folder, "berth"), "up", "--data-dir", u.dir, "--nodes", "3", "--ui-port", "-1")
	u.said, u.ended = &output.Buffer{}, make(chan struct{})
	u.cmd.Stdout, u.cmd.Stderr = u.said, u.said
	u.cmd.Env = append(os.Environ(), "KUBECONFIG=", "BERTH_DATA_DIR=", "HOME="+u.TempDir())
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := u.cmd.Start(); err != nil {
		u.Fatal(err)
	}
	cmd, ended := u.cmd, u.ended
	go func() { _ = cmd.Wait(); close(ended) }()
	u.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	u.eventually(func() error {
		select {
		case <-ended:
			u.Fatalf("berth up of %s ended:\n%s", folder, u.said)
		default:
		}
		if !strings.Contains(u.said.String(), "Berth is up") {
			return fmt.Errorf("berth up of %s has not started:\n%s", folder, u.said)
		}
		return nil
	})
}

func (u *up) end(by syscall.Signal) {
	u.Helper()
	_ = u.cmd.Process.Signal(by)
	select {
	case <-u.ended:
	case <-time.After(patience):
		u.Fatalf("berth up did not end:\n%s", u.said)
	}
	if code := u.cmd.ProcessState.ExitCode(); by == syscall.SIGINT && code != 0 {
		u.Errorf("berth up ended with exit code %d:\n%s", code, u.said)
	}
	if strings.Contains(u.said.String(), "ended with") {
		u.Errorf("a part ended by itself:\n%s", u.said)
	}
}

func (u *up) kubectl(input string, args ...string) string {
	u.Helper()
	out, err := u.try(input, args...)
	if err != nil {
		u.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (u *up) try(input string, args ...string) (string, error) {
	cmd := exec.CommandContext(u.Context(), filepath.Join(u.client, "berth"), append([]string{"kubectl", "--kubeconfig", u.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// remembered returns the state that must survive: the UIDs of objects, the nodes of pods, and the
// start times of countdowns.
func (u *up) remembered() map[string]string {
	u.Helper()
	all := map[string]string{}
	for what, args := range map[string][]string{
		"the cluster":             {"namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"},
		"its nodes":               {"nodes", "-o", "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.spec.taints[?(@.key==\"leave\")]}{end}"},
		"the Deployment":          {"deployment", "web", "-o", "jsonpath={.metadata.uid}"},
		"pod patient":             {"pod", "patient", "-o", "jsonpath={.metadata.uid} {.metadata.deletionTimestamp}"},
		"the node of pod patient": {"pod", "patient", "-o", "jsonpath={.spec.nodeName}"},
		"its restarts":            {"pod", "patient", "-o", "jsonpath={.status.startTime} {.status.containerStatuses[*].restartCount}"},
		"taints are since":        {"nodes", "-o", `jsonpath={range .items[*]}{.metadata.annotations.berth\.dev/taints-since}{end}`},
	} {
		all[what] = u.kubectl("", append([]string{"get"}, args...)...)
	}
	for pod := range strings.Lines(u.kubectl("", "get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.spec.nodeName}{"\n"}{end}`)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(pod), " ")
		all["pod "+name] = rest
	}
	return all
}

func (u *up) awaits(object, path, want string) {
	u.Helper()
	u.eventually(func() error {
		if got, err := u.try("", "get", object, "-o", "jsonpath="+path); err != nil || strings.TrimSpace(got) != want {
			return fmt.Errorf("%s: %s is %q, want %q (%v)", object, path, got, want, err)
		}
		return nil
	})
}

func (u *up) eventually(ask func() error) {
	u.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(300 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			u.Fatalf("not within %v: %v", patience, err)
		}
	}
}
