// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Times for an idle machine; see stretch.
const (
	// stillness is the time without changes after which a cluster counts as quiet. It is several
	// times as long as a component needs to observe the writes of another component.
	stillness = time.Second
	// patience limits the wait until a cluster is quiet.
	patience = time.Minute
	// usual is longer than the time to read the whole cluster on an idle machine.
	usual = 50 * time.Millisecond
)

// stretch multiplies a time by the current slowdown of the machine, measured by the time to read
// the cluster.
func (f *fortune) stretch(d time.Duration) time.Duration {
	return time.Duration(float64(d) * max(1, float64(f.pace)/float64(usual)))
}

// quiet waits until no component has work to do.
func (f *fortune) quiet() {
	f.Helper()
	began := time.Now()
	for since, before := began, ""; time.Since(since) < f.stretch(stillness); {
		asked := time.Now()
		picture, busy := f.look()
		f.pace = max(time.Since(asked), f.pace*9/10)
		f.slowest = max(f.slowest, f.pace)
		if busy != "" || picture != before {
			since, before = time.Now(), picture
		}
		if busy != "" && time.Since(began) > f.stretch(patience) {
			f.Fatalf("not quiet after %v: %s\n%s\nberth up says:\n%s", time.Since(began), busy, manifestOf(f, f.read().Set.Objects()), said)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// look returns the places of the pods, and a description of outstanding work, or "". No work is
// outstanding if the workloads have the wanted number of pods, cordoned nodes are tainted, every
// pod due for eviction has left, all other pods run or are reported as unschedulable, and the
// scheduler has no pod to try, now or later.
func (f *fortune) look() (picture, busy string) {
	f.Helper()
	pods, nodes := f.pods(), f.nodes()
	places := []string{}
	for uid, p := range pods {
		places = append(places, fmt.Sprint(uid, p.Spec.NodeName, p.DeletionTimestamp))
		if busy == "" && (f.trouble == nil || p.Spec.NodeName == "" || p.Spec.NodeName != f.trouble.silent) {
			busy = f.podBusy(p, nodes[p.Spec.NodeName])
		}
	}
	for name, n := range nodes {
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeUnschedulable })
		if tainted != n.Spec.Unschedulable {
			busy = fmt.Sprintf("%s is cordoned: %t, tainted for that: %t", name, n.Spec.Unschedulable, tainted)
		}
	}

	if busy == "" {
		busy = f.workloadsBusy(pods)
	}
	if busy == "" {
		busy = f.schedulerBusy()
	}
	slices.Sort(places)
	return strings.Join(places, " "), busy
}

// podBusy describes the outstanding change of a pod, or returns "". node is nil if the pod is not
// bound.
func (f *fortune) podBusy(p *v1.Pod, node *v1.Node) string {
	if p.DeletionTimestamp != nil {
		if now := metav1.Now(); f.trouble == nil || p.DeletionTimestamp.Before(&now) {
			return p.Name + " is to end"
		}
		return "" // slow termination is one of the tested troubles
	}
	if node != nil && p.Status.Phase != v1.PodRunning {
		return p.Name + " does not run yet"
	}
	refused := slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse
	})
	switch {
	case node == nil && !refused:
		return p.Name + " has not been tried"
	case node == nil:
		return ""
	}
	for _, taint := range node.Spec.Taints {
		borne := slices.ContainsFunc(p.Spec.Tolerations, func(t v1.Toleration) bool {
			return t.TolerationSeconds == nil && (t.Key == "" || t.Key == taint.Key) && (t.Effect == "" || t.Effect == taint.Effect)
		})
		if taint.Effect == v1.TaintEffectNoExecute && !borne {
			return fmt.Sprintf("%s has to leave %s, which is tainted %s", p.Name, node.Name, taint.ToString())
		}
	}
	return ""
}

// workloadsBusy describes a workload that still has pods to create or to delete, or returns "".
func (f *fortune) workloadsBusy(pods map[types.UID]*v1.Pod) string {
	has, held := map[types.UID]int32{}, map[types.UID]bool{}
	for _, p := range pods {
		// A terminating pod of a StatefulSet counts, because its successor must wait for its name.
		if owner := metav1.GetControllerOf(p); owner != nil && (p.DeletionTimestamp == nil || owner.Kind == "StatefulSet") {
			has[owner.UID]++
			held[owner.UID] = held[owner.UID] || !ready(p)
		}
	}
	api := client.AppsV1()
	deployments, err1 := api.Deployments("forecast").List(context.Background(), metav1.ListOptions{})
	replicaSets, err2 := api.ReplicaSets("forecast").List(context.Background(), metav1.ListOptions{})
	statefulSets, err3 := api.StatefulSets("forecast").List(context.Background(), metav1.ListOptions{})
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			f.Fatal(err)
		}
	}

	wanted := map[types.UID]int32{} // by Deployment
	for _, s := range replicaSets.Items {
		wanted[metav1.GetControllerOf(&s).UID] += *s.Spec.Replicas
		if s.Status.ObservedGeneration != s.Generation || has[s.UID] != *s.Spec.Replicas {
			return fmt.Sprintf("ReplicaSet %s has %d pods, and wants %d", s.Name, has[s.UID], *s.Spec.Replicas)
		}
	}
	for _, d := range deployments.Items {
		if d.Status.ObservedGeneration != d.Generation || wanted[d.UID] != *d.Spec.Replicas {
			return fmt.Sprintf("Deployment %s wants %d pods, and its ReplicaSets %d", d.Name, *d.Spec.Replicas, wanted[d.UID])
		}
	}
	for _, s := range statefulSets.Items {
		if ordered := s.Spec.PodManagementPolicy != appsv1.ParallelPodManagement; ordered && held[s.UID] {
			continue // the controller waits until the unready pod is ready
		}
		if s.Status.ObservedGeneration != s.Generation || has[s.UID] != *s.Spec.Replicas {
			return fmt.Sprintf("StatefulSet %s has %d pods, and wants %d", s.Name, has[s.UID], *s.Spec.Replicas)
		}
	}
	return ""
}

// ready reports whether a pod is ready and not terminating.
func ready(p *v1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

var toTry = regexp.MustCompile(`(?m)^scheduler_pending_pods\{queue="(active|backoff)"\} (\S+)$`)

// schedulerBusy describes the pods that the scheduler must still try, according to its metrics, or
// returns "".
func (f *fortune) schedulerBusy() string {
	urls, err := os.ReadFile(filepath.Join(data, "scheduler.url"))
	if err != nil {
		f.Fatal(err)
	}
	url, _, _ := strings.Cut(string(urls), "\n")
	answer, err := http.Get(url + "/metrics")
	if err != nil {
		f.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		f.Fatal(err)
	}

	queues := toTry.FindAllStringSubmatch(string(text), -1)
	if len(queues) != 2 {
		f.Fatalf("the metrics of the scheduler have queues %v", queues)
	}
	for _, q := range queues {
		if q[2] != "0" {
			return fmt.Sprintf("the scheduler has %s pods in its queue %q", q[2], q[1])
		}
	}
	return ""
}

// watch records the time at which each pod's deletion is first observed. It uses an informer,
// because the API server ends a watch after half an hour.
func (f *fortune) watch() {
	mark := func(object any) {
		if last, missed := object.(cache.DeletedFinalStateUnknown); missed {
			object = last.Obj
		}
		p := object.(*v1.Pod)
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, known := f.marked[p.UID]; !known {
			f.marked[p.UID] = time.Now()
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("forecast"))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, object any) {
			if object.(*v1.Pod).DeletionTimestamp != nil {
				mark(object)
			}
		},
		DeleteFunc: mark,
	})
	if err != nil {
		f.Fatal(err)
	}

	factory.StartWithContext(f.Context())
	cache.WaitForCacheSync(f.Context().Done(), informer.HasSynced)
}

// pods returns the pods that have not ended. A pod may end because the kubelet has not observed yet
// that its node is no longer tainted, and rejects it; its controller then creates another pod.
func (f *fortune) pods() map[types.UID]*v1.Pod {
	f.Helper()
	list, err := client.CoreV1().Pods("forecast").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	pods := map[types.UID]*v1.Pod{}
	for i := range list.Items {
		if !rules.IsTerminal(&list.Items[i]) {
			pods[list.Items[i].UID] = &list.Items[i]
		}
	}
	return pods
}

func (f *fortune) nodes() map[string]*v1.Node {
	f.Helper()
	list, err := client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		f.Fatal(err)
	}
	nodes := map[string]*v1.Node{}
	for i := range list.Items {
		nodes[list.Items[i].Name] = &list.Items[i]
	}
	return nodes
}
