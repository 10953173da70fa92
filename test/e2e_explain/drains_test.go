// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/test/internal/nightly"
	"github.com/berth-k8s/berth/test/internal/output"
)

var drains = flag.Int("drains", 6, "how many random clusters have a node drained")

const pools = 6 // number of concurrent clusters

// TestDrainsComeTrue verifies predictions of drains in random clusters: what-if, the plan of berth
// drain and kubectl must agree on the pods that leave, stay or prevent the drain, and on the
// reasons. The actual drain must match the predictions.
func TestDrainsComeTrue(t *testing.T) {
	nightly.Only(t)
	ctx, cancel := context.WithCancel(context.Background())
	nodes := exec.CommandContext(ctx, filepath.Join(bin, "berth"), "nodes", fmt.Sprintf("--count=%d", 3*pools), "--name-prefix=pool-",
		"--kubeconfig", filepath.Join(data, "kubeconfig"))
	if err := nodes.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = nodes.Wait()
		for i := range 3 * pools {
			_ = client.CoreV1().Nodes().Delete(context.Background(), fmt.Sprintf("pool-%d", i+1), metav1.DeleteOptions{})
		}
	})

	seeds, seen := make(chan uint64), map[string]int{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range pools {
		p := &pool{ctx: ctx, label: fmt.Sprint(i + 1), nodes: []string{fmt.Sprintf("pool-%d", 3*i+1), fmt.Sprintf("pool-%d", 3*i+2), fmt.Sprintf("pool-%d", 3*i+3)}}
		group.Go(func() {
			for seed := range seeds {
				fates, err := p.one(seed)
				mu.Lock()
				for _, fate := range fates {
					seen[fate]++
				}
				if mu.Unlock(); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
	for i := range uint64(*drains) {
		seeds <- *seed + i
		if i%100 == 99 {
			t.Logf("%d clusters begun", i+1)
		}
	}
	close(seeds)
	group.Wait()
	t.Logf("%d clusters: %v", *drains, seen)
	for _, fate := range []string{
		"leaves", "ending", "ignored: a static pod of its node", "ignored: ignoring DaemonSet-managed Pods", "held for a while", "held to the end", "never",
		"refused: daemonsets.apps", "refused: cannot delete DaemonSet-managed Pods", "refused: cannot delete Pods with local storage",
		"refused: cannot delete Pods that declare no controller",
	} {
		if *drains >= 200 && seen[fate] < *drains/200 {
			t.Errorf("only %d pods are %q", seen[fate], fate)
		}
	}
}

// sayings holds a prediction for each of the node's pods, by name, in the terms of berth drain.
type sayings map[string]string

// one draws a cluster, collects the predictions, drains the node and compares. It returns the kinds
// of the predictions.
func (p *pool) one(seed uint64) (fates []string, err error) {
	for _, name := range p.nodes {
		if err := p.eventually(func() error {
			_, err := client.CoreV1().Nodes().Patch(p.ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"labels": {"pool": %q}}}`, p.label), metav1.PatchOptions{})
			return err
		}); err != nil {
			return nil, err
		}
	}
	defer func() { err = errors.Join(err, p.clear()) }()
	if err := p.draw(seed); err != nil {
		return nil, err
	}
	f := &foretold{pool: p}
	for _, flag := range []string{"--ignore-daemonsets", "--delete-emptydir-data", "--force"} {
		f.flags = append(f.flags, fmt.Sprintf("%s=%t", flag, p.random.IntN(6) > 0))
	}
	for tries := 0; ; tries++ { // repeat until the cluster does not change during the predictions
		if f.pods, f.budgets, err = p.look(); err != nil {
			return nil, err
		}
		if err := f.ask(); err != nil {
			return nil, err
		}
		pods, budgets, err := p.look()
		if err != nil || versions(pods, budgets) == versions(f.pods, f.budgets) {
			break
		}
		if err := p.settle(); err != nil || tries == 5 {
			return nil, fmt.Errorf("there is always some change: %w", err)
		}
	}
	problems := f.disagreements()
	if len(problems) == 0 {
		problems = f.carryOut()
	}
	for _, name := range slices.Sorted(maps.Keys(f.planned)) {
		fates = append(fates, f.kind(name))
	}
	if len(problems) > 0 {
		return fates, fmt.Errorf("%v\n%s\nplan:     %v\nwhat-if:  %v\nkubectl:  %v\n%s%s", f.flags, strings.Join(problems, "\n"), f.planned, f.foreseen, f.kubectl, f.said, f.cluster())
	}
	return fates, nil
}

// foretold holds the predictions of one drain.
type foretold struct {
	*pool
	flags                      []string
	pods                       []v1.Pod
	budgets                    []policyv1.PodDisruptionBudget
	planned, foreseen, kubectl sayings
	said                       string // output of berth drain
}

// cluster describes the cluster for an error message.
func (f *foretold) cluster() (text string) {
	for i := range f.pods {
		pod := &f.pods[i]
		text += fmt.Sprintf("%s on %s: %s, ready %t, app %s, deleted %v, owner %v\n", pod.Name, pod.Spec.NodeName, pod.Status.Phase,
			disruption.IsReady(pod), pod.Labels["app"], pod.DeletionTimestamp, metav1.GetControllerOf(pod))
	}
	for i := range f.budgets {
		spec, err := json.Marshal(f.budgets[i].Spec)
		text += fmt.Sprintf("%s: %s %v %+v\n", f.budgets[i].Name, spec, err, f.budgets[i].Status)
	}
	return text
}

// on returns the pods on the drained node.
func (f *foretold) on() (list []*v1.Pod) {
	for i := range f.pods {
		if f.pods[i].Spec.NodeName == f.nodes[0] {
			list = append(list, &f.pods[i])
		}
	}
	return list
}

func (f *foretold) ask() (err error) {
	f.askKubectl()
	_, f.said, _ = f.berth("drain", slices.Concat([]string{f.nodes[0], "--dry-run"}, f.flags)...)
	if f.planned, err = f.plan(f.said); err != nil {
		return err
	}
	f.foreseen = sayings{}
	out, text, err := f.berth("what-if", append([]string{"drain", "node/" + f.nodes[0], "-o", "json"}, f.flags...)...)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	forecast := &whatif.Forecast{}
	if err := json.Unmarshal(out, forecast); err != nil {
		return err
	}
	for _, pod := range f.on() { // the forecast does not mention ended pods
		if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			f.foreseen[pod.Name] = "leaves"
		}
	}
	for _, l := range forecast.Leaving {
		if l.Cause == simulate.ByDrain && l.Namespace == f.namespace {
			f.foreseen[l.Name] = "leaves"
		}
	}
	for prefix, list := range map[string][]simulate.Blocked{
		"refused: ": forecast.Drains[0].Refused, "ignored: ": forecast.Drains[0].Ignored, "ending": forecast.Drains[0].Terminating,
		"held for a while: ": forecast.Drains[0].Waited, "held to the end: ": forecast.Drains[0].Blocked,
	} {
		for _, b := range list {
			if f.foreseen[b.Name] = prefix + b.Message; prefix == "ending" {
				f.foreseen[b.Name] = prefix
			}
		}
	}
	return nil
}

// askKubectl collects the predictions of kubectl drain and, by dry runs of evictions, of the API
// server. If kubectl refuses some pods, it does not mention the others.
func (f *foretold) askKubectl() {
	f.kubectl = sayings{}
	_, text, _ := f.berth("kubectl", append([]string{"drain", f.nodes[0], "--dry-run=client"}, f.flags...)...)
	name := regexp.QuoteMeta(f.namespace) + `/([a-z0-9-]+)`
	for _, m := range regexp.MustCompile("evicting pod "+name).FindAllStringSubmatch(text, -1) {
		f.kubectl[m[1]] = "leaves"
	}
	for reason, names := range f.refusals(text) {
		reason, _, _ = strings.Cut(strings.Replace(reason, "cannot delete daemonsets.apps", "daemonsets.apps", 1), " (use")
		for _, name := range names {
			f.kubectl[name] = "refused: " + reason
		}
	}
	for _, pod := range f.on() {
		if f.kubectl[pod.Name] != "leaves" {
			continue
		}
		if err := f.evictable(pod); pod.DeletionTimestamp != nil {
			f.kubectl[pod.Name] = "ending"
		} else if err != nil {
			f.kubectl[pod.Name] = err.Error()
		}
	}
}

// refusals returns, by reason, the pods that kubectl or berth drain refuses to evict according to
// its output.
func (f *foretold) refusals(text string) map[string][]string {
	list, name := map[string][]string{}, regexp.QuoteMeta(f.namespace)+`/[a-z0-9-]+`
	for _, m := range regexp.MustCompile(`((?:cannot|daemonsets).+?): (`+name+`(?:, `+name+`)*)`).FindAllStringSubmatch(text, -1) {
		list[m[1]] = strings.Split(strings.ReplaceAll(m[2], f.namespace+"/", ""), ", ")
	}
	return list
}

// evictable returns an error if the API server would not evict a pod now. The error begins with
// "held" if the eviction may be permitted later, and with "never" otherwise.
func (p *pool) evictable(pod *v1.Pod) error {
	eviction := &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: pod.Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	}
	err := client.CoreV1().RESTClient().Post().Namespace(p.namespace).Resource("pods").Name(pod.Name).SubResource("eviction").MaxRetries(0).Body(eviction).Do(p.ctx).Error()
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case apierrors.IsTooManyRequests(err) && errors.As(err, &status) && len(status.Status().Details.Causes) > 0:
		reason := status.Status().Details.Causes[0].Message
		return errors.New("held: " + strings.TrimSuffix(strings.TrimSuffix(strings.Replace(reason, "The", "the", 1), "."), " currently"))
	}
	return fmt.Errorf("never: %w", err)
}

// berth runs a command, and returns its standard output and its whole output.
func (p *pool) berth(command string, args ...string) (stdout []byte, text string, err error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(p.ctx, filepath.Join(bin, "berth"), append([]string{command}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.Bytes(), out.String() + errs.String(), err
}

// drain runs berth drain until it ends. It interrupts the drain if the remaining pods would stay
// forever.
func (f *foretold) drain() (text string, err error) {
	var out output.Buffer
	cmd := exec.CommandContext(f.ctx, filepath.Join(bin, "berth"), slices.Concat([]string{"drain", f.nodes[0], "--allow-pending", "--timeout=3m"}, f.flags)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for before, since := "", time.Now(); ; {
		select {
		case <-ended:
			return out.String(), nil
		case <-time.After(300 * time.Millisecond):
		}
		pods, budgets, err := f.look()
		if now := versions(pods, budgets) + out.String(); now != before {
			before, since = now, time.Now()
		}
		// Without a plan in the output, the drain may still be reading the cluster on a busy
		// machine.
		_, unplanned := f.plan(out.String())
		if err == nil && unplanned == nil && time.Since(since) > 2*time.Second && unsettled(pods, budgets) == nil && !f.goesOn(pods) {
			_ = cmd.Process.Signal(os.Interrupt)
		}
	}
}

// goesOn reports whether the drain can make progress: pods terminate or can be evicted, or no pods
// remain and the drain is about to end.
func (f *foretold) goesOn(pods []v1.Pod) bool {
	left := slices.DeleteFunc(pods, func(pod v1.Pod) bool {
		was := slices.ContainsFunc(f.on(), func(p *v1.Pod) bool { return p.UID == pod.UID })
		return !was || !strings.HasPrefix(f.planned[pod.Name], "leaves")
	})
	if len(left) == 0 {
		return !f.any("ending")
	}
	return slices.ContainsFunc(left, func(pod v1.Pod) bool { return pod.DeletionTimestamp != nil || f.evictable(&pod) == nil })
}

// plan parses the plan in the output of berth drain.
func (f *foretold) plan(text string) (sayings, error) {
	plan, column := sayings{}, 0
	written, _, _ := strings.Cut(text, "\nnode/") // before the progress of the drain
	for line := range strings.Lines(written) {
		line = strings.TrimSpace(line)
		why, names, listed := strings.Cut(line, ": ")
		name, ours := strings.CutPrefix(strings.Fields(line + " -")[0], f.namespace+"/")
		switch {
		case strings.HasPrefix(line, "POD "):
			column = strings.Index(line, "NOTE")
		case ours && column > 0 && !strings.Contains(name, ":"):
			if plan[name] = "leaves"; len(line) > column && strings.Contains(line[column:], "budget") {
				plan[name] = "leaves (held): " + line[column:]
			}
		case listed && strings.HasPrefix(names, f.namespace+"/"):
			for name := range strings.SplitSeq(names, ", ") {
				if plan[strings.TrimPrefix(name, f.namespace+"/")] = "ignored: " + why; strings.HasPrefix(why, "already being deleted") {
					plan[strings.TrimPrefix(name, f.namespace+"/")] = "ending"
				}
			}
		}
	}
	_, refused, _ := strings.Cut(text, "not drained: ")
	for reason, names := range f.refusals(refused) {
		kind := "refused: "
		if strings.HasPrefix(reason, "cannot evict Pods: ") { // kubectl would retry the eviction forever
			kind = "never: "
		}
		for _, name := range names {
			plan[name] = kind + reason
		}
	}
	if len(plan) == 0 && len(f.on()) > 0 && !strings.Contains(text, "0 pods to evict") {
		return nil, fmt.Errorf("no plan:\n%s", text)
	}
	return plan, nil
}
