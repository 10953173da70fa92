// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// The cluster of a life has few nodes, pods and taint keys, so that they interact often.
const (
	nodes = 3
	names = 5
	churn = 40 * time.Second // duration of the changes
)

// Churn runs a random life of a small cluster and returns its errors, or nil. The world's seed
// determines the whole life, so that a failed one can be repeated and traced.
//
// In the first 40 s taints are added and removed, pods are created, edited and deleted, watches
// break, and the controller crashes, while requests are lost, refused, late or left without a
// response. Then the cluster is idle. The life ends when every pod to be evicted must have been
// deleted, even with the longest toleration and back-off.
func Churn(w *World) []string {
	w.Requests.Inject(Begin.Add(churn), randomFaults(w)...)
	w.Devices.inUse = w.seed%4 == 2

	// These objects exist before the controller starts, so its first lists are not empty.
	for i := range nodes {
		w.AddNode(nodeName(i))
		if w.Devices.inUse {
			w.Devices.AddSlice(nodeName(i), "d1", "d2")
		}
	}
	for i := range names {
		w.AddPod(podName(i), nodeName(w.Rand.IntN(nodes)), randomTolerations(w))
		allocateDevice(w, podName(i))
	}

	// Then random events happen, while faults last.
	w.DelayWatches(randomDelay(w), randomDelay(w))
	w.Controller.Start()
	w.Controller.Ended = func() {
		w.ended()
		restartController(w)
	}
	for range 10 + w.Rand.IntN(30) {
		w.After(w.Between(0, churn), func() { makeEvent(w) })
	}
	w.After(churn, func() {
		// Without delays, the last events are observed in time.
		w.DelayWatches(0, 0)
		for _, watch := range w.Watches() {
			watch.Restore(true)
		}
		w.Requests.Line.KillAt = 0
		if !w.Controller.Running() {
			w.Controller.Start()
		}
	})

	// At the end of this run, the faults are over and each deadline has passed, so remaining errors
	// are permanent.
	w.Run(churn + 2*confirms + longest*time.Second)
	w.Devices.checkStatuses()
	return w.Truth.Check()
}

const longest = 45 // maximum seconds of a limited toleration

// Flap adds a taint to a node with one pod and removes it, up to three times, with up to two
// seconds between the changes. It then adds the taint again, and sometimes removes it again. The
// pod must be deleted if and only if the taint requires it.
//
// The interval of two seconds is critical: times in objects have whole seconds, so two taints
// within one second look like one taint. A controller that takes the second taint for the first may
// evict the pod too early, or not at all.
func Flap(w *World) []string {
	w.AddNode("n1")
	w.AddPod("p1", "n1", randomTolerations(w))
	w.DelayWatches(randomDelay(w), randomDelay(w))
	w.Controller.Start()
	if w.Chance(0.3) {
		w.Requests.Inject(Begin.Add(10*time.Second), append(virtual.Every(0.02), virtual.Rule{Fault: virtual.Unanswered, Chance: 0.3})...)
		w.RefuseDeletes("p1", w.Rand.IntN(8))
	}

	w.Run(w.Between(0, 2*time.Second))
	for range 1 + w.Rand.IntN(3) {
		w.Taint("n1", "a", "v", w.Chance(0.2))
		w.Run(w.Between(0, 2*time.Second))
		w.Untaint("n1", "a")
		w.Run(w.Between(0, 2*time.Second))
	}

	w.Taint("n1", "a", "v", w.Chance(0.2))
	if w.Chance(0.2) {
		w.Run(w.Between(0, 2*time.Second))
		w.Untaint("n1", "a")
	}

	w.Run(10*time.Second + confirms + longest*time.Second)
	return w.Truth.Check()
}

// FlapDevice is Flap for the taint of a device, in its slice or by a rule.
func FlapDevice(w *World) []string {
	w.AddNode("n1")
	w.Devices.AddSlice("n1", "d1")
	w.AddPod("p1", "n1", nil)
	w.Devices.Allocate("p1", "d1", randomDeviceTolerations(w))
	w.DelayWatches(randomDelay(w), randomDelay(w))
	w.Controller.Start()
	if w.Chance(0.3) {
		w.Requests.Inject(Begin.Add(10*time.Second), append(virtual.Every(0.02), virtual.Rule{Fault: virtual.Unanswered, Chance: 0.3})...)
		w.RefuseDeletes("p1", w.Rand.IntN(8))
	}

	// A taint can be withdrawn in three ways: from the slice, by deleting the rule, and by removing
	// the rule's effect.
	byRule := w.Chance(0.5)
	set := func(on bool) {
		switch {
		case !byRule:
			w.Devices.TaintDevice("n1", "d1", "a", on)
		case on:
			w.Devices.SetRule("a", "", v1.TaintEffectNoExecute)
		case w.Chance(0.5):
			w.Devices.SetRule("a", "", "None")
		default:
			w.Devices.RemoveRule("a")
		}
	}

	w.Run(w.Between(0, 2*time.Second))
	for range 1 + w.Rand.IntN(3) {
		set(true)
		w.Run(w.Between(0, 2*time.Second))
		set(false)
		w.Run(w.Between(0, 2*time.Second))
	}

	set(true)
	if w.Chance(0.2) {
		w.Run(w.Between(0, 2*time.Second))
		set(false)
	}

	w.Run(10*time.Second + confirms + longest*time.Second)
	return w.Truth.Check()
}

// randomFaults draws the faults of the API server. Three of ten lives have no faults. The others
// have some of them, with random probabilities, and a few have slow responses or an outage.
func randomFaults(w *World) []virtual.Rule {
	if w.Chance(0.3) {
		return nil
	}
	rules := virtual.Every(0)
	for i := range rules {
		if w.Chance(0.5) {
			rules[i].Chance = w.Rand.Float64() * 0.1
		}
	}
	rules[0].Chance, rules[1].Chance = w.Rand.Float64()*0.3, w.Rand.Float64()*0.3 // lost and unanswered
	slow := &rules[len(rules)-1]
	slow.Chance = 0
	if w.Chance(0.5) {
		slow.Delay, slow.Chance = 300*time.Millisecond, 0.5
		if w.Chance(0.3) {
			slow.Delay = 3 * time.Second
		}
	}
	if w.Chance(0.3) {
		from := Begin.Add(w.Between(0, churn/2))
		rules = append(rules, virtual.Rule{Fault: virtual.Lost, Chance: 1, From: from, Until: from.Add(w.Between(0, churn/2))})
	}
	return rules
}

// randomDelay draws the delay of a watch: zero in half of the cases.
func randomDelay(w *World) time.Duration {
	return []time.Duration{0, 0, 100 * time.Millisecond, 2 * time.Second}[w.Rand.IntN(4)]
}

// nodeName and podName name the few nodes and pods of a life.
func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }
func podName(i int) string  { return fmt.Sprintf("p%d", i+1) }

// randomTolerations draws up to three tolerations of the taints a, b and c. Some have no key, some
// have no seconds, and some have zero or negative seconds, which mean immediate eviction.
func randomTolerations(w *World) []v1.Toleration {
	var list []v1.Toleration
	for range w.Rand.IntN(4) {
		t := v1.Toleration{Operator: v1.TolerationOpExists, Key: string(rune('a' + w.Rand.IntN(3)))}
		if w.Chance(0.1) {
			t.Key = ""
		}
		if !w.Chance(0.2) {
			seconds := int64([]int{-1, 0, 1, 2, 5, 15, 30, longest}[w.Rand.IntN(8)])
			t.TolerationSeconds = &seconds
			t.Effect = v1.TaintEffectNoExecute
		}
		list = append(list, t)
	}
	return list
}

// makeEvent causes one random event that affects the cluster or its controller.
func makeEvent(w *World) {
	node, pod, key := nodeName(w.Rand.IntN(nodes)), podName(w.Rand.IntN(names)), string(rune('a'+w.Rand.IntN(3)))
	switch w.Rand.IntN(22) {
	case 0, 1, 2, 3:
		w.Taint(node, key, "v", w.Chance(0.3))
	case 4, 5:
		w.Untaint(node, key)
	case 6, 7:
		flapTaint(w, node, key)
	case 8, 9:
		if p := w.PodNamed(pod); p != nil {
			w.Terminate(p)
		}
	case 10, 11, 12:
		if p := w.AddPod(pod, node, randomTolerations(w)); p != nil {
			if w.Chance(0.5) {
				p.Grace = w.Between(0, 3*time.Second)
			}
			allocateDevice(w, pod)
		}
	case 13:
		w.Edit(pod, randomTolerations(w))
	case 14:
		w.Touch(pod)
		w.Heartbeat(node)
	case 15:
		crashController(w)
	case 16:
		w.CutPods(w.Between(0, 3*time.Second), w.Chance(0.5))
	case 17:
		w.CutNodes(w.Between(0, 3*time.Second), w.Chance(0.5))
	case 18:
		w.RefuseDeletes(pod, 1+w.Rand.IntN(8))
	case 20:
		watch := w.Watches()[w.Rand.IntN(3)]
		watch.Refuse(w.Between(time.Second, 5*time.Second))
		w.After(w.Between(0, 10*time.Second), func() { watch.Restore(true) })
	case 21:
		w.Controller.Freeze(w.Between(0, 5*time.Second), func() []eviction.Event { return nil })
	case 19:
		w.RemoveNode(node)
		w.After(w.Between(0, time.Second), func() { w.AddNode(node) })
	}

	// The event of a device is in addition to the event above, so that both kinds interact.
	if w.Devices.inUse && w.Chance(0.5) {
		deviceHappening(w, node, pod, key)
	}
	comeBack(w, pod)
}

// deviceHappening causes one random event that affects devices.
func deviceHappening(w *World, node, pod, key string) {
	device := []string{"d1", "d2"}[w.Rand.IntN(2)]

	switch w.Rand.IntN(10) {
	case 0, 1, 2:
		w.Devices.TaintDevice(node, device, key, true)
	case 3:
		w.Devices.TaintDevice(node, device, key, false)

	case 4, 5:
		effect := v1.TaintEffectNoExecute
		if w.Chance(0.3) {
			effect = "None"
		}
		w.Devices.SetRule(key, []string{node, ""}[w.Rand.IntN(2)], effect)
	case 6, 7:
		w.Devices.RemoveRule(key)

	case 8:
		w.Devices.CutDevices(w.Between(0, 3*time.Second), w.Chance(0.5))
	case 9:
		switch {
		case w.Chance(0.3):
			w.Devices.Deallocate(pod)
		case w.Chance(0.5):
			w.Devices.RemoveSlice(node)
		default:
			w.Devices.AddSlice(node, "d1", "d2")
		}
	}
}

// allocateDevice allocates a device to most pods, if there are any devices.
func allocateDevice(w *World, pod string) {
	if w.Devices.inUse && w.Chance(0.7) {
		w.Devices.Allocate(pod, []string{"d1", "d2"}[w.Rand.IntN(2)], randomDeviceTolerations(w))
	}
}

// randomDeviceTolerations is randomTolerations for devices.
func randomDeviceTolerations(w *World) (list []resourcev1.DeviceToleration) {
	for _, t := range randomTolerations(w) {
		list = append(list, resourcev1.DeviceToleration{
			Key: t.Key, Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffect(t.Effect),
			TolerationSeconds: t.TolerationSeconds,
		})
	}
	return list
}

// comeBack usually recreates a deleted pod under its name, like a StatefulSet.
func comeBack(w *World, pod string) {
	if w.PodNamed(pod) == nil && w.Chance(0.7) {
		node, tolerations := nodeName(w.Rand.IntN(nodes)), randomTolerations(w)
		w.After(w.Between(0, 300*time.Millisecond), func() {
			if w.AddPod(pod, node, tolerations) != nil {
				allocateDevice(w, pod)
			}
		})
	}
}

// flapTaint adds a taint and removes it, up to three times in a few seconds, and mostly adds it
// again at the end.
func flapTaint(w *World, node, key string) {
	wait := time.Duration(0)
	for range 1 + w.Rand.IntN(3) {
		w.After(wait, func() { w.Taint(node, key, "v", false) })
		wait += w.Between(0, 2*time.Second)
		w.After(wait, func() { w.Untaint(node, key) })
		wait += w.Between(0, 2*time.Second)
	}
	if w.Chance(0.7) {
		w.After(wait, func() { w.Taint(node, key, "v", false) })
	}
}

// crashController kills the controller, immediately or at one of its next requests.
func crashController(w *World) {
	if w.Chance(0.3) {
		w.Requests.Line.KillAt, w.Requests.Line.KillAfter = 1+w.Rand.IntN(10), w.Chance(0.5)
		return
	}
	w.Controller.Kill()
}

// restartController restarts a killed controller within five seconds.
func restartController(w *World) {
	w.After(w.Between(0, 5*time.Second), func() {
		if !w.Controller.Running() {
			w.Controller.Start()
		}
	})
}
