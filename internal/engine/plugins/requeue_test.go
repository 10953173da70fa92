// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

var epoch = time.Unix(1_700_000_000, 0)

func aPod(name, cpu string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func aNode(name, cpu string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: "a"}},
		Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourcePods: resource.MustParse("10")}},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func priority(value int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &value } }

func term(app string) []v1.PodAffinityTerm {
	return []v1.PodAffinityTerm{{TopologyKey: v1.LabelTopologyZone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
}

func attracted(app string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(app)}}
	}
}

func repelled(app string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(app)}}
	}
}

// world is a cluster with a pod waiting for one plugin.
type world struct {
	c *cluster.Cluster
	q *queue.Queue
}

// waits reports whether the pod rejected by the plugin still waits after the event.
func waits(t *testing.T, w *world, waiting *v1.Pod, plugin string, happens func(c *cluster.Cluster) queue.Event) bool {
	t.Helper()
	w.q = queue.New()
	w.q.SetInterests(v1.DefaultSchedulerName, plugins.Default().Interests(w.c, nil))
	item := w.q.Add(waiting, w.c.Pending(waiting).Class, epoch)
	w.q.Rejected(w.q.Pop(epoch), []string{plugin}, nil, epoch)
	e := happens(w.c)
	w.q.Happened(&e, epoch.Add(time.Hour))
	return item.Place() == queue.Waiting
}

func goes(pod string) func(*cluster.Cluster) queue.Event {
	return func(c *cluster.Cluster) queue.Event {
		p := c.Pod(types.UID(pod))
		n := p.Node
		c.RemovePod(p.UID())
		return queue.Event{Resource: queue.Pod, Action: queue.Delete, PodBefore: p, Node: n}
	}
}

func comes(pod *v1.Pod) func(*cluster.Cluster) queue.Event {
	return func(c *cluster.Cluster) queue.Event {
		p := c.SetPod(pod)
		return queue.Event{Resource: queue.Pod, Action: queue.Add, Pod: p, Node: p.Node}
	}
}

func changes(action queue.Action, node *v1.Node) func(*cluster.Cluster) queue.Event {
	return func(c *cluster.Cluster) queue.Event {
		e := queue.Event{Resource: queue.Node, Action: action}
		if n := c.Node(node.Name); n != nil {
			before := *n
			e.NodeBefore = &before
		}
		e.Node = c.SetNode(node)
		return e
	}
}

func claiming(claim string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	}
}

func wantsDevice(p *v1.Pod) {
	name := "device"
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "d", ResourceClaimName: &name}}
}

func wantsExtended(p *v1.Pod) {
	p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
}

func detached(*cluster.Cluster) queue.Event {
	return queue.Event{Resource: queue.VolumeAttachment, Action: queue.Delete, Old: &storagev1.VolumeAttachment{}}
}

// volumeChanges returns an event that adds the label to a volume.
func volumeChanges(label string) func(*cluster.Cluster) queue.Event {
	return func(*cluster.Cluster) queue.Event {
		was := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume"}}
		is := was.DeepCopy()
		is.Labels = map[string]string{label: "b"}
		return queue.Event{Resource: queue.Volume, Action: queue.Update, Old: was, New: is}
	}
}

// classComes returns an event that adds a device class with the extended resource.
func classComes(name, extended string) func(*cluster.Cluster) queue.Event {
	return func(*cluster.Cluster) queue.Event {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if extended != "" {
			class.Spec.ExtendedResourceName = &extended
		}
		return queue.Event{Resource: queue.DeviceClass, Action: queue.Add, New: class}
	}
}

func TestWhatWakesWhom(t *testing.T) {
	on := func(p *v1.Pod, node string) *v1.Pod { p.Spec.NodeName = node; return p }
	taint := func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}} }
	disk := func(n *v1.Node) { n.Labels["disk"] = "ssd" }
	wantsDisk := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
	noDisk := func(n *v1.Node) { n.Labels["disk"] = "" }
	wantsNoDisk := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": ""} }
	elsewhere := func(n *v1.Node) { n.Labels[v1.LabelTopologyZone] = "elsewhere" }
	spreads := func(p *v1.Pod) {
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule}}
	}
	honours := func(p *v1.Pod) {
		honour := v1.NodeInclusionPolicyHonor
		p.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = &honour
	}
	port := func(n int32) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: n}} }
	}
	for _, c := range []struct {
		name    string
		waiting *v1.Pod
		plugin  string
		happens func(*cluster.Cluster) queue.Event
		wakes   bool
	}{
		{"room enough", aPod("w", "2"), "NodeResourcesFit", goes("two"), true},
		{"room that is not enough", aPod("w", "2"), "NodeResourcesFit", goes("one"), false},
		{"room that is enough with preemption, freed by somebody who could not be preempted", aPod("w", "3", priority(5)), "NodeResourcesFit", goes("high"), true},
		{"room freed by somebody who could be preempted before", aPod("w", "4", priority(5)), "NodeResourcesFit", goes("one"), false},
		{"a pod that comes is of no help to one that wants room", aPod("w", "2"), "NodeResourcesFit", comes(on(aPod("new", "1"), "n")), false},
		{"a node that is large enough", aPod("w", "6"), "NodeResourcesFit", changes(queue.Add, aNode("new", "6")), true},
		{"a node that is too small", aPod("w", "6"), "NodeResourcesFit", changes(queue.Add, aNode("new", "5")), false},
		{"a node that grows", aPod("w", "2"), "NodeResourcesFit", changes(queue.UpdateNodeAllocatable, aNode("n", "9")), true},
		{"a taint that goes", aPod("w", "1"), "TaintToleration", changes(queue.UpdateNodeTaint, aNode("tainted", "4")), true},
		{"a taint that stays", aPod("w", "1"), "TaintToleration", changes(queue.UpdateNodeTaint, aNode("tainted", "4", taint)), false},
		{"a taint that goes is of no help against affinity", aPod("w", "1", wantsDisk), "NodeAffinity", changes(queue.UpdateNodeTaint, aNode("tainted", "4")), false},
		{"the label that is wanted", aPod("w", "1", wantsDisk), "NodeAffinity", changes(queue.UpdateNodeLabel, aNode("n", "4", disk)), true},
		{"another label", aPod("w", "1", wantsDisk), "NodeAffinity", changes(queue.UpdateNodeLabel, aNode("n", "4", func(n *v1.Node) { n.Labels["x"] = "y" })), false},
		{"a domain, of one that spreads", aPod("w", "1", spreads), "PodTopologySpread", changes(queue.UpdateNodeLabel, aNode("n", "5", elsewhere)), true},
		{"a domain, of one that is attracted", aPod("w", "1", attracted("one")), "InterPodAffinity", changes(queue.UpdateNodeLabel, aNode("n", "5", elsewhere)), true},
		{"a label by which nodes are counted", aPod("w", "1", spreads, wantsDisk), "PodTopologySpread", changes(queue.UpdateNodeLabel, aNode("n", "5", disk)), true},
		{"a label by which no node is counted", aPod("w", "1", spreads), "PodTopologySpread", changes(queue.UpdateNodeLabel, aNode("n", "5", disk)), false},
		{"an empty label by which no node without it is counted", aPod("w", "1", spreads, wantsNoDisk), "PodTopologySpread", changes(queue.UpdateNodeLabel, aNode("n", "5", noDisk)), true},
		{"a taint by which nodes are counted", aPod("w", "1", spreads, honours), "PodTopologySpread", changes(queue.UpdateNodeTaint, aNode("tainted", "4")), true},
		{"a taint by which no node is counted", aPod("w", "1", spreads), "PodTopologySpread", changes(queue.UpdateNodeTaint, aNode("tainted", "4")), false},
		{"the port that is wanted", aPod("w", "1", port(80)), "NodePorts", goes("port"), true},
		{"another port", aPod("w", "1", port(81)), "NodePorts", goes("port"), false},
		{"the pod that is looked for", aPod("w", "1", attracted("new")), "InterPodAffinity", comes(on(aPod("new", "1"), "n")), true},
		{"another pod", aPod("w", "1", attracted("new")), "InterPodAffinity", comes(on(aPod("other", "1"), "n")), false},
		{"the pod that is kept away from", aPod("w", "1", repelled("one")), "InterPodAffinity", goes("one"), true},
		{"the pod that keeps away", aPod("w", "1"), "InterPodAffinity", goes("hermit"), true},
		{"the last of its kind, so that the next may begin anew anywhere", aPod("w", "1", attracted("one"), func(p *v1.Pod) { p.Labels["app"] = "one" }), "InterPodAffinity", goes("one"), true},
		{"a pod that is looked for, leaving", aPod("w", "1", attracted("one")), "InterPodAffinity", goes("one"), false},
		{"another claim", aPod("w", "1", func(p *v1.Pod) {
			p.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "mine"}}}}
		}), "VolumeBinding", func(*cluster.Cluster) queue.Event {
			return queue.Event{Resource: queue.Claim, Action: queue.Add, New: &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "yours"}}}
		}, false},
		{"a volume that is detached", aPod("w", "1", claiming("mine")), "NodeVolumeLimits", detached, true},
		{"a volume that is detached is of no help to a pod without volumes", aPod("w", "1"), "NodeVolumeLimits", detached, false},
		{"the zone of the pod's volume", aPod("w", "1", claiming("mine")), "VolumeZone", volumeChanges(v1.LabelTopologyZone), true},
		{"another label of the pod's volume", aPod("w", "1", claiming("mine")), "VolumeZone", volumeChanges("x"), false},
		{"any change of the pod's volume", aPod("w", "1", claiming("mine")), "VolumeBinding", volumeChanges("x"), true},
		{"the device class that the pod's claim names", aPod("w", "1", wantsDevice), "DynamicResources", classComes("gpu", ""), true},
		{"the device class that an alternative names", aPod("w", "1", wantsDevice), "DynamicResources", classComes("spare", ""), true},
		{"another device class", aPod("w", "1", wantsDevice), "DynamicResources", classComes("nic", ""), false},
		{"the device class of the extended resource", aPod("w", "1", wantsExtended), "DynamicResources", classComes("nic", "example.com/gpu"), true},
		{"the device class of the extended resource, against room", aPod("w", "1", wantsExtended), "NodeResourcesFit", classComes("nic", "example.com/gpu"), true},
		{"the device class of another extended resource, against room", aPod("w", "1", wantsExtended), "NodeResourcesFit", classComes("nic", "example.com/nic"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{c: cluster.New()}
			w.c.SetNode(aNode("n", "5"))
			w.c.SetNode(aNode("tainted", "4", taint))
			for _, p := range []*v1.Pod{aPod("one", "1"), aPod("two", "2"), aPod("high", "2", priority(100))} {
				w.c.SetPod(on(p, "n"))
			}
			w.c.SetPod(on(aPod("port", "0", port(80)), "n"))
			w.c.SetPod(on(aPod("hermit", "0", repelled("w")), "n"))
			w.c.Claims.Set(&v1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "volume"},
			})
			w.c.ResourceClaims.Set(&resourcev1.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "device"},
				Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
					{Name: "a", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}},
					{Name: "b", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "c", DeviceClassName: "spare"}}},
				}}},
			})
			if got := !waits(t, w, c.waiting, c.plugin, c.happens); got != c.wakes {
				t.Errorf("wakes: %t, want %t", got, c.wakes)
			}
		})
	}
}

func TestAPluginThatRejectsNobodyAnyMoreKeepsNobody(t *testing.T) {
	at := map[plugins.Point][]string{plugins.Filters: {"NodeName"}, plugins.Score: {"NodeResourcesFit"}, plugins.PreEnqueue: {"DynamicResources"}}
	profile, err := plugins.NewProfile("s", at, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := profile.Interests(cluster.New(), nil)
	for name, listed := range map[string]bool{"NodeName": true, "NodeResourcesFit": false, "DynamicResources": true, "TaintToleration": false} {
		if _, ok := all[name]; ok != listed {
			t.Errorf("%s: listed %t, want %t", name, ok, listed)
		}
	}
}

// Every filter of the default profile must list the events that can help: pods rejected by a filter
// without such a list would be retried after every event.
func TestEveryFilterStatesWhatCanHelp(t *testing.T) {
	profile := plugins.Default()
	all := profile.Interests(cluster.New(), nil)
	for _, f := range profile.Filters {
		if len(all[f.Name()]) == 0 {
			t.Errorf("%s states nothing", f.Name())
		}
		if w, ok := f.(plugins.Waker); !ok || len(w.Wakes()) == 0 {
			t.Errorf("%s does not say in words what its pods wait for", f.Name())
		}
	}
	if list, ok := all["DefaultPreemption"]; !ok || len(list) > 0 {
		t.Errorf("DefaultPreemption: %v, %t; want a list without entries", list, ok)
	}
}

func TestKeptBudgetsWakeWhoWantsRoom(t *testing.T) {
	for _, keep := range []bool{false, true} {
		profile := plugins.Default()
		profile.KeepBudgets = keep
		for _, plugin := range []string{"NodeResourcesFit", "NodePorts", "InterPodAffinity", "PodTopologySpread", "VolumeRestrictions", "NodeVolumeLimits"} {
			listed := slices.ContainsFunc(profile.Interests(cluster.New(), nil)[plugin], func(i queue.Interest) bool { return i.Resource == queue.Budget })
			if listed != keep {
				t.Errorf("KeepBudgets %t: %s: budgets listed %t", keep, plugin, listed)
			}
		}
	}
}
