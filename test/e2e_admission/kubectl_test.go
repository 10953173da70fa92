// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eadmission

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// kubectl runs stock kubectl for one cluster.
type kubectl struct {
	t    *testing.T
	path string
	env  []string
}

func (c *cluster) kubectl(t *testing.T) kubectl {
	t.Helper()
	path, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("there is no kubectl in PATH, which is what this test is about")
	}
	return kubectl{t, path, append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+t.TempDir())}
}

func (k kubectl) try(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, k.path, args...)
	// Without the line "---", kubectl parses YAML that begins with a brace as JSON.
	cmd.Env, cmd.Stdin = k.env, strings.NewReader("---\n"+stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// run runs kubectl, requires it to succeed, and returns the output.
func (k kubectl) run(args ...string) string {
	k.t.Helper()
	out, err := k.try(k.t.Context(), "", args...)
	if err != nil {
		k.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// apply applies a manifest.
func (k kubectl) apply(manifest string, args ...string) {
	k.t.Helper()
	if _, err := k.try(k.t.Context(), manifest, append([]string{"apply", "-f", "-"}, args...)...); err != nil {
		k.t.Fatal(err)
	}
}

// refused requires that the API server refuses the manifest with an error that contains the words.
func (k kubectl) refused(words, manifest string, args ...string) {
	k.t.Helper()
	if len(args) == 0 {
		args = []string{"apply", "-f", "-"}
	}
	if _, err := k.try(k.t.Context(), manifest, args...); err == nil || !strings.Contains(err.Error(), words) {
		k.t.Errorf("want a refusal with %q, got %v\n%s", words, err, manifest)
	}
}

// is requires that a field of an object has the wanted value.
func (k kubectl) is(want, object, jsonpath string, args ...string) {
	k.t.Helper()
	if got := k.run(append([]string{"get", object, "-o", "jsonpath=" + jsonpath}, args...)...); got != want {
		k.t.Errorf("%s %s %v: %s, want %s", object, jsonpath, args, got, want)
	}
}

// becomes waits until a field of an object has the wanted value.
func (k kubectl) becomes(want, object, jsonpath string, args ...string) {
	k.t.Helper()
	eventually(k.t, func(ctx context.Context) error {
		got, err := k.try(ctx, "", append([]string{"get", object, "-o", "jsonpath=" + jsonpath}, args...)...)
		if err == nil && strings.TrimSpace(got) != want {
			err = fmt.Errorf("%s %s %v: %s, want %s", object, jsonpath, args, got, want)
		}
		return err
	})
}
