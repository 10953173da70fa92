// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// Driver is the driver of all devices. Each node has one pool, in one slice; both have the node's
// name.
const Driver = "gpu.example.com"

// Devices are the objects describing devices, and their watch. Stored objects are never changed,
// only replaced, because a watch may not have delivered them yet.
type Devices struct {
	world *World
	inUse bool           // the random life has devices
	feed  *virtual.Watch // a single feed for all three kinds; a real API server has three watches

	claims map[types.NamespacedName]*eviction.Claim // each has one device
	slices map[string]*eviction.Slice               // by name, equal to the node's name
	rules  map[string]*eviction.Rule                // by name
	given  map[types.NamespacedName]time.Time       // time of the claim's allocation
}

// AddSlice publishes a node's devices without taints, replacing devices published before. The
// generation grows, as after the restart of a driver.
func (d *Devices) AddSlice(node string, names ...string) {
	generation := int64(1)
	if before := d.slices[node]; before != nil {
		generation = before.Generation + 1
	}
	s := &eviction.Slice{Name: node, Pool: eviction.Pool{Driver: Driver, Name: node}, Node: node, Generation: generation}
	for _, name := range names {
		s.Devices = append(s.Devices, eviction.SliceDevice{Name: name})
	}
	d.writeSlice(s)
}

// writeSlice stores a slice. Stored slices are never changed.
func (d *Devices) writeSlice(s *eviction.Slice) {
	d.world.Truth.justifyAll()
	d.slices[s.Name] = s
	d.feed.Show(func() { d.world.Controller.Step(eviction.SliceSeen{Slice: *s}) })
}

// RemoveSlice deletes a node's slice, as when its driver is removed.
func (d *Devices) RemoveSlice(node string) {
	if d.slices[node] != nil {
		d.world.Truth.justifyAll()
		delete(d.slices, node)
		d.feed.Show(func() { d.world.Controller.Step(eviction.SliceGone{Name: node}) })
	}
}

// TaintDevice adds or removes the taint of a device in its slice. The API server sets the time.
func (d *Devices) TaintDevice(node, device, key string, on bool) {
	before := d.slices[node]
	if before == nil {
		return
	}

	// The slice is copied, because the stored one may not have been delivered yet.
	s := *before
	s.Devices = slices.Clone(before.Devices)
	for i := range s.Devices {
		if s.Devices[i].Name != device {
			continue
		}
		of := func(t v1.Taint) bool { return t.Key == key }
		if slices.ContainsFunc(s.Devices[i].Taints, of) == on {
			return
		}
		taints := slices.DeleteFunc(slices.Clone(s.Devices[i].Taints), of)
		if on {
			taints = append(taints, d.deviceTaint(key))
		}
		s.Devices[i].Taints = taints
	}

	d.world.Tracef("device %s/%s tainted %s: %v", node, device, key, on)
	d.writeSlice(&s)
}

// deviceTaint returns a taint as stored by the API server now, with the time in whole seconds.
func (d *Devices) deviceTaint(key string) v1.Taint {
	return v1.Taint{Key: key, Value: "v", Effect: v1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: d.world.Now.Truncate(time.Second)}}
}

// SetRule creates a rule, or changes its effect and its selector. The rule selects the devices of
// the node, or all devices if node is empty. Like the API server, SetRule sets the time of the
// taint when the rule is created, and when its effect changes.
func (d *Devices) SetRule(name, node string, effect v1.TaintEffect) {
	d.world.Truth.justifyAll()
	r := &eviction.Rule{Name: name, Generation: 1, Taint: d.deviceTaint(name), Selector: &resourcev1.DeviceTaintSelector{}}
	if node != "" {
		r.Selector.Pool = ptr.To(node)
	}
	r.Taint.Effect = effect
	if before := d.rules[name]; before != nil {
		r.UID, r.Generation, r.Condition = before.UID, before.Generation+1, before.Condition
		// An unchanged effect keeps the time of the taint.
		if before.Taint.Effect == effect {
			r.Taint.TimeAdded = before.Taint.TimeAdded
		}
	} else {
		r.UID = d.world.nextUID(name)
	}
	d.world.Tracef("rule %s: %s on %s", name, effect, cmp.Or(node, "all nodes"))
	d.showRule(r)
}

// showRule stores a rule and delivers it.
func (d *Devices) showRule(r *eviction.Rule) {
	d.rules[r.Name] = r
	d.feed.Show(func() { d.world.Controller.Step(eviction.RuleSeen{Rule: *r}) })
}

// RemoveRule deletes a rule.
func (d *Devices) RemoveRule(name string) {
	if d.rules[name] != nil {
		d.world.Truth.justifyAll()
		delete(d.rules, name)
		d.world.Tracef("rule %s gone", name)
		d.feed.Show(func() { d.world.Controller.Step(eviction.RuleGone{Name: name}) })
	}
}

// Rule returns the rule with the name, or nil.
func (d *Devices) Rule(name string) *eviction.Rule { return d.rules[name] }

// Allocate allocates a device of the pod's node to the pod with the name, through a claim of the
// same name with these tolerations. If there is no such pod, it does nothing. The device need not
// exist, because a slice may be deleted after the allocation.
func (d *Devices) Allocate(name, device string, tolerations []resourcev1.DeviceToleration) {
	p := d.world.PodNamed(name)
	if p == nil {
		return
	}
	d.world.Truth.justifyAll()
	// The pod refers to the claim before the claim exists, like a pod with a claim template.
	if !slices.ContainsFunc(p.Claims, func(ref eviction.ClaimRef) bool { return ref.Name == name }) {
		p.Claims, p.ResourceVersion = append(slices.Clone(p.Claims), eviction.ClaimRef{Name: name}), d.world.nextVersion()
		d.world.showPod(p)
	}
	c := &eviction.Claim{Name: p.Name, UID: "claim-" + p.UID, For: []types.UID{p.UID}}
	c.Uses = []eviction.Use{{Device: eviction.Device{Driver: Driver, Pool: p.Node, Name: device}, Tolerations: tolerations}}
	d.claims[c.Name], d.given[c.Name] = c, d.world.Now
	d.feed.Show(func() { d.world.Controller.Step(eviction.ClaimSeen{Claim: *c}) })
}

// Deallocate deletes a pod's claim, and thus releases its device.
func (d *Devices) Deallocate(name string) {
	key := types.NamespacedName{Namespace: "default", Name: name}
	if d.claims[key] != nil {
		d.world.Truth.justifyAll()
		delete(d.claims, key)
		d.feed.Show(func() { d.world.Controller.Step(eviction.ClaimGone{Name: key}) })
	}
}

// CutDevices breaks the watches of devices for that long; see virtual.Watch.Cut.
func (d *Devices) CutDevices(wait time.Duration, lists bool) { d.feed.Cut(wait, lists) }

// HoldDevices delays the events of devices until the given time.
func (d *Devices) HoldDevices(until time.Time) { d.feed.Hold(until) }

// listDevices delivers all objects, like lists of their kinds.
func (d *Devices) listDevices() {
	// The kinds are listed one after the other, so between two lists the controller has incomplete
	// state.
	for _, kind := range []eviction.Kind{eviction.Claims, eviction.Slices, eviction.Rules} {
		d.world.Controller.Step(eviction.Listing{Kind: kind})
		switch kind {
		case eviction.Claims:
			for _, c := range sortedValues(d.claims, byName) {
				d.world.Controller.Step(eviction.ClaimSeen{Claim: *c})
			}
		case eviction.Slices:
			for _, s := range sortedValues(d.slices, cmp.Compare[string]) {
				d.world.Controller.Step(eviction.SliceSeen{Slice: *s})
			}
		case eviction.Rules:
			for _, r := range sortedValues(d.rules, cmp.Compare[string]) {
				d.world.Controller.Step(eviction.RuleSeen{Rule: *r})
			}
		}

		d.world.Controller.Step(eviction.Listed{Kind: kind})
	}
}

// readDevices responds with the current objects, omitting nonexistent ones.
func (d *Devices) readDevices(a eviction.ReadDevices) eviction.Answered {
	read := &eviction.Devices{}
	for _, name := range a.Claims {
		if c := d.claims[name]; c != nil {
			read.Claims = append(read.Claims, *c)
		}
	}

	for _, at := range a.Pools {
		if s := d.slices[at.Node]; s != nil && s.Pool == at.Pool {
			read.Slices = append(read.Slices, *s)
		}
	}

	for _, name := range a.Rules {
		if r := d.rules[name]; r != nil {
			read.Rules = append(read.Rules, *r)
		}
	}
	return eviction.Answered{Devices: read}
}

// writeStatus stores the condition of the rule with the UID, and delivers the rule.
func (d *Devices) writeStatus(a eviction.WriteStatus) eviction.Answered {
	before := d.rules[a.Rule]
	switch {
	case before == nil:
		return eviction.Answered{Outcome: response.Gone}
	case before.UID != a.UID:
		return eviction.Answered{Outcome: response.Conflict}
	}
	r := *before
	r.Condition = a.Condition
	r.Condition.LastTransitionTime = metav1.Time{Time: a.Condition.LastTransitionTime.Truncate(time.Second)}
	d.showRule(&r)
	return eviction.Answered{}
}

// dueByDevice returns the deadline set by the taints of the pod's device. It does not share code
// with the Core: it examines every toleration for every taint.
func (d *Devices) dueByDevice(p *Pod) (least eviction.Due) {
	c := d.claims[p.Name]
	if c == nil || !slices.Contains(c.For, p.UID) || len(p.Claims) == 0 {
		return eviction.Due{}
	}

	// Allocate gives each claim one device.
	use := c.Uses[0]
	var taints []v1.Taint
	if s := d.slices[use.Device.Pool]; s != nil {
		for _, device := range s.Devices {
			if device.Name == use.Device.Name {
				taints = append(taints, device.Taints...)
			}
		}
	}

	for _, r := range d.rules {
		if r.Taint.Effect == v1.TaintEffectNoExecute && (r.Selector.Pool == nil || *r.Selector.Pool == use.Device.Pool) {
			taints = append(taints, r.Taint)
		}
	}

	for _, taint := range taints {
		stay, forever, tolerated := time.Duration(0), false, false
		for _, t := range use.Tolerations {
			if t.Key != "" && t.Key != taint.Key || t.Effect != "" && t.Effect != resourcev1.DeviceTaintEffectNoExecute {
				continue
			}
			// An unlimited toleration overrides tolerations with seconds. Of several tolerations
			// with seconds, the shortest counts.
			forever = forever || t.TolerationSeconds == nil || t.Effect == ""
			if t.TolerationSeconds != nil {
				if seconds := time.Duration(max(0, *t.TolerationSeconds)) * time.Second; !tolerated || seconds < stay {
					stay, tolerated = seconds, true
				}
			}
		}
		if at := taint.TimeAdded.Add(stay); !forever && (least.Stays() || at.Before(least.At)) {
			least = eviction.Due{At: at, Taint: taint, Device: use.Device}
		}
	}

	return least
}

// checkStatuses checks, at the end, that the status of each rule reports whether the rule still
// evicts pods.
func (d *Devices) checkStatuses() {
	for _, r := range sortedValues(d.rules, cmp.Compare[string]) {
		pods := 0
		for _, p := range sortedValues(d.world.pods, byName) {
			c := d.claims[p.Name]
			if p.Terminating || c == nil || !slices.Contains(c.For, p.UID) || len(p.Claims) == 0 {
				continue
			}
			device := c.Uses[0].Device
			forever := slices.ContainsFunc(c.Uses[0].Tolerations, func(t resourcev1.DeviceToleration) bool {
				return (t.Key == "" || t.Key == r.Taint.Key) && (t.TolerationSeconds == nil || t.Effect == "")
			})
			if r.Taint.Effect == v1.TaintEffectNoExecute && (r.Selector.Pool == nil || *r.Selector.Pool == device.Pool) && !forever {
				pods++
			}
		}

		// The number of pods in the message is not checked: it may be slightly outdated, because
		// statuses are written at intervals.
		if is := r.Condition; is.ObservedGeneration != r.Generation || (is.Status == metav1.ConditionTrue) != (pods > 0) {
			d.world.Truth.reportWrong("rule %s, generation %d, asks %d pods to go, and its status is %s %q of generation %d",
				r.Name, r.Generation, pods,
				is.Status, is.Message, is.ObservedGeneration)
		}
	}
}
