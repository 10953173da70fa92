// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// environment returns an environment without the user's cluster and cache.
func (c *cluster) environment() []string {
	return append(os.Environ(), "HOME="+c.dir, "KUBECONFIG="+c.kubeconfig, "BERTH_DATA_DIR="+c.path("none"))
}

// tryBerth runs a berth command as the administrator. It returns the standard output followed by
// the standard error, and the exit code.
func (c *cluster) tryBerth(input string, args ...string) (string, int) {
	c.Helper()
	out, errs, code := c.execute(input, args...)
	return out + errs, code
}

func (c *cluster) execute(input string, args ...string) (stdout, stderr string, code int) {
	c.Helper()
	var out, errs strings.Builder
	cmd := exec.Command(filepath.Join(c.berth, "berth"), args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.environment(), strings.NewReader(input), &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		c.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func (c *cluster) berthSays(args ...string) string {
	c.Helper()
	out, code := c.tryBerth("", args...)
	if code != 0 {
		c.Fatalf("berth %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// answers decodes the JSON output of a berth command.
func (c *cluster) answers(into any, args ...string) {
	c.Helper()
	out, errs, code := c.execute("", append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil || code != 0 {
		c.Fatalf("berth %s: exit code %d, %v\n%s%s", strings.Join(args, " "), code, err, out, errs)
	}
}

// tryKubectl runs the built-in kubectl in the promise's namespace.
func (c *cluster) tryKubectl(input string, args ...string) (string, int) {
	c.Helper()
	if c.namespace != "" {
		args = append([]string{"-n", c.namespace}, args...)
	}
	return c.tryBerth(input, append([]string{"kubectl"}, args...)...)
}

func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	out, code := c.tryKubectl("", args...)
	if code != 0 {
		c.Fatalf("kubectl %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

func (c *cluster) apply(manifests string, args ...string) {
	c.Helper()
	if out, code := c.tryKubectl(manifests, append([]string{"apply", "-f", "-"}, args...)...); code != 0 {
		c.Fatalf("kubectl apply %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
}

// get returns fields of an object, or kubectl's error if it does not exist.
func (c *cluster) get(object, jsonpath string, args ...string) string {
	c.Helper()
	out, _ := c.tryKubectl("", append([]string{"get", object, "-o", "jsonpath=" + jsonpath}, args...)...)
	return out
}

// awaits waits until fields of an object have the wanted values.
func (c *cluster) awaits(object, jsonpath, want string) {
	c.Helper()
	c.eventually(func() error {
		if got := c.get(object, jsonpath); got != want {
			return fmt.Errorf("%s of %s is %q, want %q", jsonpath, object, got, want)
		}
		return nil
	})
}

func (c *cluster) gone(object string) {
	c.Helper()
	c.eventually(func() error {
		if out := c.kubectl("get", object, "--ignore-not-found", "-o", "name"); out != "" {
			return fmt.Errorf("%s is still there", strings.TrimSpace(out))
		}
		return nil
	})
}

// event waits for an event of an object with the reason and a message that contains the words.
func (c *cluster) event(object, reason, words string) {
	c.Helper()
	c.eventually(func() error {
		text := c.kubectl("get", "events", "--field-selector", "involvedObject.name="+object+",reason="+reason, "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(text, words) {
			return fmt.Errorf("%s: no event %s %q, but %q", object, reason, words, text)
		}
		return nil
	})
}

// Fields of pods.
const (
	phase    = "{.status.phase}"
	placedOn = "{.spec.nodeName}"
	leaving  = "{.metadata.deletionTimestamp}"
	whyNot   = `{.status.conditions[?(@.type=="PodScheduled")].message}`
	mayGo    = `{.status.conditions[?(@.type=="DisruptionTarget")].reason}`
)

func (c *cluster) runs(pods ...string) {
	c.Helper()
	for _, pod := range pods {
		c.awaits("pod/"+pod, phase, "Running")
	}
}

// waits waits until a pod is reported as unschedulable with a message that contains the words.
func (c *cluster) waits(pod, words string) {
	c.Helper()
	c.eventually(func() error {
		if text := c.get("pod/"+pod, whyNot); !strings.Contains(text, words) || c.get("pod/"+pod, placedOn) != "" {
			return fmt.Errorf("%s is on %q and says %q, want %q", pod, c.get("pod/"+pod, placedOn), text, words)
		}
		return nil
	})
}

// stays requires that a pod is running and not terminating.
func (c *cluster) stays(pod string) {
	c.Helper()
	if got := c.get("pod/"+pod, phase+leaving); got != "Running" {
		c.Errorf("%s does not stay: %s", pod, got)
	}
}

// pod returns a manifest of a pod with the labels and additional fields of its spec.
func pod(name, labels string, more ...string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {%s}}\nspec: {%s}\n---\n", name, labels,
		strings.Join(append([]string{"containers: [{name: c, image: nginx}]"}, more...), ", "))
}

// on returns a field of a pod's spec that selects a node.
func on(node string) string { return "nodeSelector: {kubernetes.io/hostname: " + node + "}" }

// tainted adds taints to a node, and removes them at the end of the promise's test.
func (c *cluster) tainted(node string, taints ...string) {
	c.Helper()
	c.kubectl(append([]string{"taint", "nodes", node}, taints...)...)
	for _, taint := range taints {
		c.T.Cleanup(func() { _, _ = c.tryKubectl("", "taint", "nodes", node, taint+"-") })
	}
}
