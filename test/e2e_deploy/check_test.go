// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/test/internal/binaries"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// check runs `berth check` and returns its output and exit code.
func (c *cluster) check(kubeconfig string, args ...string) (string, int) {
	c.Helper()
	out, err := exec.Command(filepath.Join(bin, "berth"), append([]string{"check", "--kubeconfig", kubeconfig}, args...)...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.Fatal(err)
	}
	if exit != nil {
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}

// says reports whether a line of the output begins with the level and contains the words.
func says(out, level, words string) bool {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, level+" ") && strings.Contains(line, words) {
			return true
		}
	}
	return false
}

func TestCheckSeesWhatIsThere(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	out, code := c.check(c.Kubeconfig, "--fail-on", "problem")
	if code != 0 || !says(out, "note", "only the system's classes") || says(out, "problem", "") || strings.Contains(out, "not read") {
		t.Errorf("of an empty cluster, with exit code %d:\n%s", code, out)
	}
	c.install("everything")
	c.staticPod("kube-controller-manager", "--controllers=*")
	c.staticPod("kube-scheduler", "--leader-elect=false")
	c.kubectl("run", "misspelt", "--image=nginx", "--overrides", `{"spec": {"schedulerName": "berht"}}`)
	eventually(t, func() error {
		out, code = c.check(c.Kubeconfig, "--fail-on", "problem")
		for level, words := range map[string]string{
			"ok": "berth-controller may do all that it needs", "problem": "kube-scheduler-cp runs without leader election", "warning": "1 pod pending for scheduler berht",
		} {
			if !says(out, level, words) || code != 3 {
				return fmt.Errorf("no %s %q, or exit code %d, in\n%s", level, words, code, out)
			}
		}
		return nil
	})
	if !says(out, "problem", "add to its flags: --controllers=*,-node-lifecycle-controller,-taint-eviction-controller") || !says(out, "problem", "berth-webhook") {
		t.Errorf("it overlooks what is wrong:\n%s", out)
	}
	// A revoked permission is reported as missing.
	c.kubectl("delete", "role", "berth-controller", "-n", "kube-node-lease")
	eventually(t, func() error {
		if out, _ := c.check(c.Kubeconfig); !says(out, "problem", "berth-controller may not: get leases.coordination.k8s.io in kube-node-lease, list ") {
			return errors.New(out)
		}
		return nil
	})
}

// staticPod creates a pod like the mirror pod of a control plane component.
func (c *cluster) staticPod(name string, args ...string) {
	c.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-cp", Namespace: metav1.NamespaceSystem},
		Spec: v1.PodSpec{NodeName: "cp", HostNetwork: true, Containers: []v1.Container{{
			Name: name, Image: "registry.k8s.io/" + name + ":" + binaries.Kubernetes, Command: append([]string{name}, args...),
		}}},
	}
	eventually(c.T, func() error {
		_, err := c.api.CoreV1().Pods(pod.Namespace).Create(c.T.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

// TestCheckAsksAboutTheCaller verifies that `berth check --for` checks the caller's own
// permissions: those of kube-scheduler suffice for Berth's scheduler, and another user's do not.
// For a caller with few read permissions, the output must list the resources that could not be
// read.
func TestCheckAsksAboutTheCaller(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := newCluster(t)
	if out, code := c.check(c.user("system:kube-scheduler"), "--for", "scheduler", "--fail-on", "problem"); code != 0 {
		t.Errorf("as kube-scheduler, with exit code %d:\n%s", code, out)
	}
	if out, code := c.check(c.user("jane"), "--for", "scheduler", "--fail-on", "problem"); code != 3 || !says(out, "problem", "you may not create pods/binding") {
		t.Errorf("as nobody, with exit code %d:\n%s", code, out)
	}
	if out, code := c.check(c.user("jane")); code != 0 || !says(out, "note", "pods is forbidden") {
		t.Errorf("as nobody, with exit code %d:\n%s", code, out)
	}
	if out, code := c.check(c.user("jane"), "--for", "everything"); code != 2 {
		t.Errorf("about a part that is none, with exit code %d:\n%s", code, out)
	}
	c.install("everything")
	own := record(t, c.Config)
	if out, code := c.check(kubeconfig(t, own, c.token("berth-webhook")), "--for", "webhook"); code != 0 || !says(out, "ok", "you may do all that webhook needs") {
		t.Errorf("as the webhook, with exit code %d:\n%s", code, out)
	}
	for _, verb := range []string{"update", "patch", "delete"} {
		for used := range own.used {
			if used.Verb == verb {
				t.Errorf("it only asks, and yet: %v", used)
			}
		}
	}
}

// user writes a kubeconfig with an administrator's credentials that impersonates a user.
func (c *cluster) user(name string) string {
	c.Helper()
	file, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		c.Fatal(err)
	}
	for _, info := range file.AuthInfos {
		info.Impersonate = name
	}
	path := filepath.Join(c.T.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		c.Fatal(err)
	}
	return path
}
