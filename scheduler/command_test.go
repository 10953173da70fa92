// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// call runs the command without a cluster.
func call(t *testing.T, opts []Option, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "nowhere"))
	var out, warnings bytes.Buffer
	cmd := NewCommand(opts...)
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&warnings)
	cmd.SilenceErrors = true
	err = cmd.ExecuteContext(context.Background())
	return out.String(), warnings.String(), err
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestWrongUsageIsToldApart(t *testing.T) {
	factory := func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return nil, nil }
	for _, row := range []struct {
		opts []Option
		args []string
		want string
	}{
		{nil, []string{"--binders=0"}, "--binders 0: must be 1 or more"},
		{nil, []string{"--logging-format=xml"}, "xml"},
		{nil, []string{"--leader-elect-renew-deadline=20s"}, "--leader-elect-lease-duration 15s: must be greater"},
		{[]Option{WithPlugin("Mine", factory), WithPlugin("Mine", factory)}, nil, "a plugin named Mine already exists"},
		{[]Option{WithPlugin("TaintToleration", factory)}, nil, "a plugin named TaintToleration already exists"},
		{[]Option{WithPlugin("Mine", nil)}, nil, "needs a name and a factory"},
	} {
		_, _, err := call(t, row.opts, row.args...)
		var wrong UsageError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%v: %v, want wrong usage: %s", row.args, err, row.want)
		}
	}
}

func TestWhatCannotBeDoneIsOneLine(t *testing.T) {
	bad := write(t, "bad.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparallelism: -1\n")
	short := write(t, "short.yaml", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {renewDeadline: 2s}\n")
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"--config", short}, "short.yaml: leaderElection: --leader-elect-renew-deadline 2s: must be greater than 1.2 times"},
		{nil, "no cluster: run `berth up`"},
		{[]string{"--config", bad}, "bad.yaml: parallelism: Invalid value: -1: should be an integer value greater than zero"},
		{[]string{"--config", "/nowhere.yaml"}, "open /nowhere.yaml: no such file or directory"},
		{[]string{"--algorithm-provider", "Fastest"}, "Fastest"},
		{[]string{"--policy-configmap", "p"}, "ConfigMap kube-system/p"},
		{[]string{"--reserve-for-pod-groups"}, "--reserve-for-pod-groups: requires --feature-gates=GenericWorkload=true"},
		{[]string{"--feature-gates=GenericWorkload=true", "--reserve-for-pod-groups=nobody"}, "--reserve-for-pod-groups nobody: no profile has this schedulerName"},
		{[]string{"--pod-group-reservation-share=1.5"}, "--pod-group-reservation-share 1.5: must be above 0 and up to 1"},
		{[]string{"--pod-group-search-limit=0"}, "--pod-group-search-limit 0: must be 1 or more"},
		{[]string{"--pod-group-reservation-duration=0"}, "--pod-group-reservation-duration 0s: must be greater than zero"},
		{[]string{"--gentle-preemption=nobody"}, "--gentle-preemption nobody: no profile has this schedulerName"},
		{[]string{"--preemption-delay=1m"}, "--preemption-delay: requires --gentle-preemption"},
		{[]string{"--gentle-preemption", "--preemption-delay=-1s"}, "--preemption-delay -1s: must not be negative"},
		{[]string{"--preemption-min-run-time=1m"}, "--preemption-min-run-time: requires --gentle-preemption"},
		{[]string{"--gentle-preemption", "--preemption-min-run-time=-1s"}, "--preemption-min-run-time -1s: must not be negative"},
		{[]string{"--preemption-look-ahead=ties"}, "--preemption-look-ahead: requires --gentle-preemption"},
		{[]string{"--gentle-preemption", "--preemption-look-ahead=all"}, `--preemption-look-ahead "all": must be ties or highest-victim`},
		{[]string{"--preemption-respects-budgets=nobody"}, "--preemption-respects-budgets nobody: no profile has this schedulerName"},
	} {
		_, _, err := call(t, nil, row.args...)
		if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, want %s", row.args, err, row.want)
		}
	}
}

func TestPolicyIsWrittenAsAConfigurationOfToday(t *testing.T) {
	policy := write(t, "policy.json", `{"kind": "Policy", "apiVersion": "v1",
		"predicates": [{"name": "PodFitsResources"}, {"name": "PodToleratesNodeTaints"}],
		"priorities": [{"name": "LeastRequestedPriority", "weight": 2}]}`)
	stdout, stderr, err := call(t, nil, "--policy-config-file", policy, "--write-config-to", "-")
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	for _, want := range []string{"apiVersion: kubescheduler.config.k8s.io/v1", "name: TaintToleration", "resourceName: kube-scheduler"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	again := write(t, "again.yaml", stdout)
	if twice, _, err := call(t, nil, "--config", again, "--write-config-to", "-"); err != nil || twice != stdout {
		t.Errorf("%v; written again it reads\n%s", err, twice)
	}
	file := filepath.Join(t.TempDir(), "written.yaml")
	if _, _, err := call(t, nil, "--policy-config-file", policy, "--write-config-to", file); err != nil {
		t.Fatal(err)
	}
	if written, err := os.ReadFile(file); err != nil || string(written) != stdout {
		t.Errorf("%v; the file reads\n%s", err, written)
	}
}

func TestFlagsWithoutEffectAreNotes(t *testing.T) {
	_, stderr, _ := call(t, nil, "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf", "--feature-gates=NoSuchGate=true")
	for _, want := range []string{"--authentication-kubeconfig: has no effect", "--feature-gates: NoSuchGate: has no effect"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in %q", want, stderr)
		}
	}
}

func TestProgramOfItsOwnEndsAsBerthDoes(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	t.Setenv("KUBECONFIG", nowhere)
	for _, row := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"--help"}, 0, ""},
		{[]string{"--no-such-flag"}, 2, "scheduler: unknown flag: --no-such-flag (see scheduler --help)\n"},
		{[]string{"--binders=0"}, 2, "scheduler: --binders 0: must be 1 or more\n"},
		{nil, 1, "scheduler: no cluster: run `berth up`, or name one with --kubeconfig or KUBECONFIG (" + nowhere + " does not exist, or names none)\n"},
	} {
		var stdout, stderr bytes.Buffer
		if code := executeCommand(NewCommand(), row.args, &stdout, &stderr); code != row.code || stderr.String() != row.stderr {
			t.Errorf("%v: %d %q, want %d %q", row.args, code, stderr.String(), row.code, row.stderr)
		}
	}
}
