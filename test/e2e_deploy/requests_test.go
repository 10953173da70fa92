// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/deploy"
)

// TestEvictionRequests verifies, on an API server with the feature gate, that the controller can
// respond to EvictionRequests with exactly the permissions in its manifests. The cases are several
// requesters, withdrawal, SIGKILL during an eviction, and another responder. It also verifies that
// drains and moves create EvictionRequests, with the permissions listed in docs/tasks/drain.md, and
// evict pods directly if no controller responds.
func TestEvictionRequests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "--feature-gates=EvictionRequestAPI=true", "--runtime-config=lifecycle.k8s.io/v1alpha1=true")
	c.simulate(4)
	c.install("eviction-requests")
	c.checkSays("ok", "answers them")
	c.checkSays("ok", "berth-controller may do all that it needs")
	c.kubectl("scale", "deployment", "-n", deploy.Namespace, "--all", "--replicas=0") // the components run outside of the cluster
	c.checkSays("note", "no pod that answers them was found")
	granted, err := deploy.EvictionRequestRights()
	if err != nil {
		t.Fatal(err)
	}
	there := &fault{verb: "create", resource: "evictions", status: 409, reason: metav1.StatusReasonAlreadyExists, times: 1} // forces a read
	r := &requests{cluster: c, root: c, seen: record(t, c.Config, there), granted: granted}
	r.begin()

	for _, step := range []struct {
		name string
		run  func(*requests)
	}{
		{"several requesters, and all of them withdraw", (*requests).withdrawAll},
		{"kill -9 in the middle", (*requests).killInTheMiddle},
		{"another responder acts first", (*requests).otherResponder},
		{"a drain asks", (*requests).drainAsks},
		{"a move asks", (*requests).moveAsks},
	} {
		t.Run(step.name, func(t *testing.T) { step.run(r.at(t)) })
	}
	r.controller.check(func(deploy.Right) bool { return false })
	r.controller.kill()
	t.Run("nobody answers", func(t *testing.T) { r.at(t).nobodyAnswers() })
}

// checkSays waits until berth check prints a line with the level and the words.
func (c *cluster) checkSays(level, words string) {
	c.Helper()
	eventually(c.T, func() error {
		if out, _ := c.check(c.Kubeconfig); !says(out, level, words) {
			return fmt.Errorf("no %s %q in\n%s", level, words, out)
		}
		return nil
	})
}

// requests is a cluster with a controller that responds to EvictionRequests.
type requests struct {
	*cluster
	root       *cluster  // cluster of the main test, in which the processes run
	seen       *recorder // recorder of the controller's requests
	granted    []deploy.Right
	controller *part
	scheduler  string // scheduler configuration
}

func (r *requests) at(t *testing.T) *requests {
	next := *r
	next.cluster = r.cluster.at(t)
	return &next
}

// begin starts a scheduler with an administrator's permissions, and the controller with its own
// permissions.
func (r *requests) begin() {
	r.Helper()
	r.scheduler = filepath.Join(r.TempDir(), "scheduler.yaml")
	configuration := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\n"
	if err := os.WriteFile(r.scheduler, []byte(configuration), 0o600); err != nil {
		r.Fatal(err)
	}
	scheduler := &part{t: r.T, what: deploy.Scheduler}
	scheduler.start([]string{"scheduler", "--kubeconfig", r.Kubeconfig, "--config", r.scheduler, "--secure-port=0"})
	r.controller = r.startController()
}

func (r *requests) startController() *part {
	r.Helper()
	p := &part{t: r.root.T, what: deploy.Controller, seen: r.seen, granted: r.granted}
	p.start([]string{"controller", "--kubeconfig", kubeconfig(r.root.T, r.seen, r.token("berth-controller")), "--leader-elect=false",
		"--controllers=*,evictionrequest-controller", "--health-bind-address=127.0.0.1:0"})
	p.says("(?m)^ready$")
	return p
}

// withdrawAll verifies that a pod is not evicted after all requesters have withdrawn, one by
// changing its intent and the other by deleting its request. The pod was protected by a budget
// until then. A repeated request must evict the pod.
func (r *requests) withdrawAll() {
	p := r.blocked("withdrawn")
	r.ask("one", p)
	r.ask("two", p)
	r.says("one", lifecyclev1alpha1.EvictionConditionFailed, "AwaitingEviction", "disruption budget")
	r.says("two", lifecyclev1alpha1.EvictionConditionFailed, "AwaitingEviction", "disruption budget")
	r.requestersOf(p, "acme.io/one Eviction, acme.io/two Eviction")

	r.kubectl("patch", "evictionrequest", "one", "--type=merge", `-p={"spec": {"intent": "Withdrawn"}}`)
	r.requestersOf(p, "acme.io/one Withdrawn, acme.io/two Eviction")
	r.says("two", lifecyclev1alpha1.EvictionConditionFailed, "AwaitingEviction", "disruption budget")
	r.kubectl("delete", "evictionrequest", "two")
	r.says("one", lifecyclev1alpha1.EvictionConditionFailed, "CanceledDueToNoRequesters",
		"no EvictionRequest requests the eviction of the pod")
	r.kubectl("delete", "poddisruptionbudget", p.Name)
	<-time.After(2 * time.Second) // longer than the interval between attempts to evict the pod
	if now := r.kubectl("get", "pod", p.Name, "-o", "jsonpath={.metadata.uid} {.metadata.deletionTimestamp}"); now != string(p.UID)+" " {
		r.Errorf("the pod, whose eviction nobody wants, is %q", now)
	}

	r.kubectl("patch", "evictionrequest", "one", "--type=merge", `-p={"spec": {"intent": "Eviction"}}`)
	r.says("one", lifecyclev1alpha1.EvictionConditionTargetEvicted, "PodDeleted", "the pod is gone")
}

// killInTheMiddle verifies that a restarted controller continues evictions: the previous one is
// killed while it waits for a budget.
func (r *requests) killInTheMiddle() {
	p := r.blocked("killed")
	r.ask("three", p)
	r.says("three", lifecyclev1alpha1.EvictionConditionFailed, "AwaitingEviction", "disruption budget")
	r.controller.kill()
	r.kubectl("delete", "poddisruptionbudget", p.Name)
	r.ask("four", p)
	*r.controller = *r.startController()
	for _, name := range []string{"three", "four"} {
		r.says(name, lifecyclev1alpha1.EvictionConditionTargetEvicted, "PodDeleted", "the pod is gone")
	}
}

// otherResponder verifies that Berth evicts a pod only after the pod's own responder has completed.
func (r *requests) otherResponder() {
	p := r.pod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "served"},
		Spec: v1.PodSpec{EvictionResponders: []v1.EvictionResponder{{Name: "acme.io/mover", Priority: new(int32(5000))}}}})
	r.ask("five", p)
	r.says("five", lifecyclev1alpha1.EvictionConditionFailed, "AwaitingEviction", "waits for acme.io/mover")
	r.respond(p, "acme.io/mover", "3 of 4 shards have moved", false)
	r.says("five", lifecyclev1alpha1.EvictionConditionFailed, "AwaitingEviction", "acme.io/mover: 3 of 4 shards have moved")
	if now := r.kubectl("get", "pod", p.Name, "-o", "jsonpath={.metadata.deletionTimestamp}"); now != "" {
		r.Error("the pod is evicted while its responder acts")
	}
	r.respond(p, "acme.io/mover", "all have moved", true)
	r.says("five", lifecyclev1alpha1.EvictionConditionTargetEvicted, "PodDeleted", "the pod is gone")
}

// drainAsks verifies that a drain with the permissions listed in docs/tasks/drain.md creates
// EvictionRequests.
func (r *requests) drainAsks() {
	seen, own := r.drains("drains")
	out := r.drain(own, r.workload("drained", 2))
	if strings.Contains(out, "directly") || !seen.has(asking("create")) || seen.has(evicting) {
		r.Errorf("evictions were asked for: %t, made directly: %t\n%s", seen.has(asking("create")), seen.has(evicting), out)
	}
	r.refusedNothing("the drain", seen)
}

// nobodyAnswers verifies that a drain evicts pods directly if no controller runs, and leaves no
// EvictionRequests.
func (r *requests) nobodyAnswers() {
	seen, own := r.drains("drains-alone")
	out := r.drain(own, r.workload("alone", 2))
	if !strings.Contains(out, "EvictionRequests are served, but no responder answers them: pods are evicted directly") ||
		!seen.has(evicting) {
		r.Errorf("nobody answers, and that is not said, or pods are not evicted directly:\n%s", out)
	}
	r.noneIsLeft()
	r.refusedNothing("the drain", seen)
}

// moveAsks verifies that a move of a pod from a tainted node creates EvictionRequests. It has the
// permissions of the rebalance controller, and its requests are recorded together with the
// controller's.
func (r *requests) moveAsks() {
	r.apply(rendered(r.T, "rebalance"))
	r.kubectl("scale", "deployment", "-n", deploy.Namespace, "--all", "--replicas=0")
	from := r.workload("moved", 1, "acme.io/mover")
	r.kubectl("taint", "node", from, "old=yes:NoSchedule")
	r.Cleanup(func() { r.kubectl("taint", "node", from, "old-") })
	list, err := r.api.CoreV1().Pods("default").List(r.Context(), metav1.ListOptions{LabelSelector: "app=moved"})
	if err != nil {
		r.Fatal(err)
	}
	pod := &list.Items[0]

	// Ctrl-C withdraws the requests.
	r.seen.forget(asking("get"), asking("create"), evicting)
	own := kubeconfig(r.T, r.seen, r.token("berth-controller"))
	first := &part{t: r.T, what: "rebalance", seen: r.seen}
	flags := []string{"rebalance", "heal", "--execute", "--config", r.scheduler, "--kubeconfig", own}
	first.start(flags)
	eventually(r.T, func() error { // wait until the move watches its request
		if !r.seen.has(asking("get")) {
			return errors.New("the move has not looked after its request")
		}
		return nil
	})
	first.interrupt()
	first.says("stopped after 0 moves: interrupted")
	r.noneIsLeft()
	if now := r.kubectl("get", "pod", pod.Name, "-o", "jsonpath={.metadata.deletionTimestamp}"); now != "" {
		r.Error("the pod is evicted while its responder acts")
	}

	second := &part{t: r.T, what: "rebalance", seen: r.seen}
	second.start(flags)
	r.respond(pod, "acme.io/mover", "all have moved", true)
	second.says("done: 1 move")
	if out := second.out.String(); strings.Contains(out, "directly") || !r.seen.has(asking("create")) {
		r.Errorf("evictions were asked for: %t\n%s", r.seen.has(asking("create")), out)
	}
	if now := r.kubectl("get", "pods", "-l", "app=moved", "-o", "jsonpath={.items[*].spec.nodeName}"); strings.Contains(now, from) {
		r.Errorf("the pod is on %s, from which it was to be moved\n%s", now, second.out)
	}
}

// noneIsLeft waits until all EvictionRequests created by Berth are deleted.
func (r *requests) noneIsLeft() {
	r.Helper()
	eventually(r.T, func() error {
		own := metav1.ListOptions{LabelSelector: "berth.dev/requester"}
		list, err := r.api.LifecycleV1alpha1().EvictionRequests("").List(r.Context(), own)
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d requests are left", len(list.Items))
		}
		return err
	})
}

var evicting = deploy.Right{Verb: "create", Resource: "pods/eviction"}

func asking(verb string) deploy.Right {
	return deploy.Right{Verb: verb, Group: lifecyclev1alpha1.GroupName, Resource: "evictionrequests"}
}

func (r *requests) refusedNothing(what string, seen *recorder) {
	r.Helper()
	for _, refusal := range seen.refused() {
		r.Errorf("%s needs more than is named: %s", what, refusal)
	}
}

// drains creates a user with the permissions of berth-view and the permissions for drains in
// docs/tasks/drain.md. It returns the user's recorder and kubeconfig.
func (r *requests) drains(name string) (seen *recorder, kubeconfigPath string) {
	r.Helper()
	r.apply(fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [patch]}
- {apiGroups: [""], resources: [pods/eviction], verbs: [create]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [lifecycle.k8s.io], resources: [evictionrequests], verbs: [get, list, create, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s, namespace: kube-system}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s-reads}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: berth-view}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: default}]
`, name))
	seen = record(r.T, r.Config)
	return seen, kubeconfig(r.T, seen, r.tokenIn("default", name))
}

// drain drains a node, requires that no pods remain on it, and uncordons it.
func (r *requests) drain(own, node string) string {
	r.Helper()
	out, err := exec.CommandContext(r.Context(), filepath.Join(bin, "berth"), "drain", node, "--force", "--config", r.scheduler,
		"--kubeconfig", own, "--timeout=60s").CombinedOutput()
	if left := r.kubectl("get", "pods", "-A", "-o", "name", "--field-selector=spec.nodeName="+node); err != nil || left != "" {
		r.Errorf("berth drain: %v; pods that are left: %q\n%s", err, left, out)
	}
	r.kubectl("uncordon", node)
	return string(out)
}

// workload creates a Deployment whose pods have the responders and run on one node, and returns the
// node.
func (r *requests) workload(name string, replicas int, responders ...string) (node string) {
	r.Helper()
	var others []string
	for _, n := range strings.Fields(r.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))[1:] {
		others = append(others, n)
		r.kubectl("cordon", n)
	}
	var listed []string
	for _, responder := range responders {
		listed = append(listed, fmt.Sprintf("{name: %s, priority: 5000}", responder))
	}
	r.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: app}]
      evictionResponders: [%[3]s]
`, name, replicas, strings.Join(listed, ", ")))
	r.kubectl("rollout", "status", "deployment", name, "--timeout=90s")
	for _, n := range others {
		r.kubectl("uncordon", n)
	}
	return r.kubectl("get", "pods", "-l", "app="+name, "-o", "jsonpath={.items[0].spec.nodeName}")
}

// blocked creates a pod that a budget protects.
func (r *requests) blocked(name string) *v1.Pod {
	r.Helper()
	r.kubectl("create", "poddisruptionbudget", name, "--selector=app="+name, "--min-available=1")
	return r.pod(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}})
}

// pod creates a running pod that disappears a second after its eviction.
func (r *requests) pod(p *v1.Pod) *v1.Pod {
	r.Helper()
	p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = "node-2", new(int64(1))
	p.Spec.Containers = []v1.Container{{Name: "main", Image: "app"}}
	p, err := r.api.CoreV1().Pods("default").Create(r.Context(), p, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	r.kubectl("wait", "--for=condition=Ready", "pod/"+p.Name, "--timeout=90s")
	return p
}

// ask creates an EvictionRequest for a pod by the requester acme.io/NAME.
func (r *requests) ask(name string, p *v1.Pod) {
	r.Helper()
	_, err := r.api.LifecycleV1alpha1().EvictionRequests("default").Create(r.Context(), &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: lifecyclev1alpha1.EvictionRequestSpec{Requester: "acme.io/" + name, Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
			Target: lifecyclev1alpha1.EvictionRequestTarget{Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: p.Name, UID: p.UID}}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
}

// says waits until a request's condition has the reason, and a message that contains the words.
func (r *requests) says(name string, condition lifecyclev1alpha1.EvictionConditionType, reason, words string) {
	r.Helper()
	eventually(r.T, func() error {
		request, err := r.api.LifecycleV1alpha1().EvictionRequests("default").Get(r.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found := meta.FindStatusCondition(request.Status.Conditions, string(condition))
		if found == nil || found.Reason != reason || !strings.Contains(found.Message, words) {
			return fmt.Errorf("the request %s says %+v", name, request.Status.Conditions)
		}
		return nil
	})
}

// evictionOf returns the pod's Eviction.
func (r *requests) evictionOf(pod types.UID) (*lifecyclev1alpha1.Eviction, error) {
	list, err := r.api.LifecycleV1alpha1().Evictions("default").List(r.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Spec.Target.Pod.UID == pod {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("of %d Evictions none is of the pod", len(list.Items))
}

// requestersOf waits until a pod's Eviction lists these requesters.
func (r *requests) requestersOf(p *v1.Pod, want string) {
	r.Helper()
	eventually(r.T, func() error {
		e, err := r.evictionOf(p.UID)
		if err != nil {
			return err
		}
		var list []string
		for _, requester := range e.Status.Requesters {
			list = append(list, fmt.Sprintf("%s %s", requester.Name, requester.Intent))
		}
		slices.Sort(list)
		if got := strings.Join(list, ", "); got != want {
			return fmt.Errorf("the requesters are %q, not %q", got, want)
		}
		return nil
	})
}

// respond waits until a responder is active, and writes its status.
func (r *requests) respond(p *v1.Pod, responder, message string, completes bool) {
	r.Helper()
	eventually(r.T, func() error {
		e, err := r.evictionOf(p.UID)
		if err != nil {
			return err
		}
		for i := range e.Status.Responders {
			status := &e.Status.Responders[i]
			acts := slices.ContainsFunc(e.Status.TargetResponders, func(t lifecyclev1alpha1.TargetResponder) bool {
				return t.Name == responder && t.State == lifecyclev1alpha1.ResponderStateActive
			})
			if status.Name != responder || !acts {
				continue
			}
			now := metav1.Now()
			status.HeartbeatTime, status.Message = &now, &message
			if completes {
				status.CompletionTime = &now
			}
			_, err = r.api.LifecycleV1alpha1().Evictions("default").UpdateStatus(r.Context(), e, metav1.UpdateOptions{})
			if apierrors.IsInvalid(err) {
				r.Fatal(err)
			}
			return err
		}
		return fmt.Errorf("it is not %s's turn: %+v", responder, e.Status)
	})
}
