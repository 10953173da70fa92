package faultapi

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
)

// Driver is the driver of all devices. Each node has a pool of its name, in one slice.
const Driver = "gpu.example.com"

// devices are the objects that tell of devices.
type devices struct {
	hasDevices bool // in this life

	claims map[types.NamespacedName]*eviction.Claim
	slices map[string]*eviction.Slice
	rules  map[string]*eviction.Rule
	given  map[types.NamespacedName]time.Time // when the claim got its device
}

// AddSlice publishes a node's devices, without taints, in place of those published before.
func (w *World) AddSlice(node string, names ...string) {
	generation := int64(1)
	if before := w.slices[node]; before != nil {
		generation = before.Generation + 1
	}
	s := &eviction.Slice{Name: node, Pool: eviction.Pool{Driver: Driver, Name: node}, Node: node, Generation: generation}
	for _, name := range names {
		s.Devices = append(s.Devices, eviction.SliceDevice{Name: name})
	}
	w.writeSlice(s)
}

// writeSlice stores a slice. What is stored is never changed.
func (w *World) writeSlice(s *eviction.Slice) {
	w.justifyAll()
	w.slices[s.Name] = s
	w.deviceFeed.showChange(func() { w.stepCore(eviction.SliceSeen{Slice: *s}) })
}

// RemoveSlice deletes a node's slice, as a driver does that ends.
func (w *World) RemoveSlice(node string) {
	if w.slices[node] != nil {
		w.justifyAll()
		delete(w.slices, node)
		w.deviceFeed.showChange(func() { w.stepCore(eviction.SliceGone{Name: node}) })
	}
}

// TaintDevice taints a device in its slice, or takes that back. The API server sets the time.
func (w *World) TaintDevice(node, device, key string, on bool) {
	before := w.slices[node]
	if before == nil {
		return
	}

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
			taints = append(taints, w.deviceTaint(key))
		}
		s.Devices[i].Taints = taints
	}

	w.traceLine("device %s/%s tainted %s: %v", node, device, key, on)
	w.writeSlice(&s)
}

func (w *World) deviceTaint(key string) v1.Taint {
	return v1.Taint{Key: key, Value: "v", Effect: v1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: w.Now.Truncate(time.Second)}}
}

// SetRule creates a rule, or changes what it selects: devices of a node, "" all; and its effect.
// The API server sets the time of its taint, at its creation and when the effect changes.
func (w *World) SetRule(name, node string, effect v1.TaintEffect) {
	w.justifyAll()
	r := &eviction.Rule{Name: name, Generation: 1, Taint: w.deviceTaint(name), Selector: &resourcev1.DeviceTaintSelector{}}
	if node != "" {
		r.Selector.Pool = ptr.To(node)
	}
	r.Taint.Effect = effect
	if before := w.rules[name]; before != nil {
		r.UID, r.Generation, r.Condition = before.UID, before.Generation+1, before.Condition
		if before.Taint.Effect == effect {
			r.Taint.TimeAdded = before.Taint.TimeAdded
		}
	} else {
		r.UID = w.nextUID(name)
	}
	w.traceLine("rule %s: %s on %s", name, effect, cmp.Or(node, "all nodes"))
	w.showRule(r)
}

func (w *World) showRule(r *eviction.Rule) {
	w.rules[r.Name] = r
	w.deviceFeed.showChange(func() { w.stepCore(eviction.RuleSeen{Rule: *r}) })
}

// RemoveRule deletes a rule.
func (w *World) RemoveRule(name string) {
	if w.rules[name] != nil {
		w.justifyAll()
		delete(w.rules, name)
		w.traceLine("rule %s gone", name)
		w.deviceFeed.showChange(func() { w.stepCore(eviction.RuleGone{Name: name}) })
	}
}

// Rule returns the rule of that name, nil if there is none.
func (w *World) Rule(name string) *eviction.Rule { return w.rules[name] }

// Allocate gives a device of its node to a pod, by a claim that it names and that has the pod's
// name, with these tolerations.
func (w *World) Allocate(name, device string, tolerations []resourcev1.DeviceToleration) {
	p := w.PodNamed(name)
	if p == nil {
		return
	}
	w.justifyAll()
	if !slices.ContainsFunc(p.Claims, func(ref eviction.ClaimRef) bool { return ref.Name == name }) {
		p.Claims, p.ResourceVersion = append(slices.Clone(p.Claims), eviction.ClaimRef{Name: name}), w.nextVersion()
		w.showPod(p)
	}
	c := &eviction.Claim{Name: p.Name, UID: "claim-" + p.UID, For: []types.UID{p.UID}}
	c.Uses = []eviction.Use{{Device: eviction.Device{Driver: Driver, Pool: p.Node, Name: device}, Tolerations: tolerations}}
	w.claims[c.Name], w.given[c.Name] = c, w.Now
	w.deviceFeed.showChange(func() { w.stepCore(eviction.ClaimSeen{Claim: *c}) })
}

// Deallocate takes the device of a pod's claim back.
func (w *World) Deallocate(name string) {
	key := types.NamespacedName{Namespace: "default", Name: name}
	if w.claims[key] != nil {
		w.justifyAll()
		delete(w.claims, key)
		w.deviceFeed.showChange(func() { w.stepCore(eviction.ClaimGone{Name: key}) })
	}
}

// CutDevices breaks the watches of devices.
func (w *World) CutDevices(wait time.Duration, lists bool) { w.deviceFeed.Cut(wait, lists) }

// HoldDevices holds back what watches show of devices until then.
func (w *World) HoldDevices(until time.Time) { w.deviceFeed.HoldUntil = until }

func (w *World) listDevices() {
	for _, kind := range []eviction.Kind{eviction.Claims, eviction.Slices, eviction.Rules} {
		w.stepCore(eviction.Listing{Kind: kind})
		switch kind {
		case eviction.Claims:
			for _, c := range sortedValues(w.claims, byName) {
				w.stepCore(eviction.ClaimSeen{Claim: *c})
			}
		case eviction.Slices:
			for _, s := range sortedValues(w.slices, cmp.Compare[string]) {
				w.stepCore(eviction.SliceSeen{Slice: *s})
			}
		case eviction.Rules:
			for _, r := range sortedValues(w.rules, cmp.Compare[string]) {
				w.stepCore(eviction.RuleSeen{Rule: *r})
			}
		}

		w.stepCore(eviction.Listed{Kind: kind})
	}
}

func (w *World) readDevices(a eviction.ReadDevices) eviction.Answered {
	read := &eviction.Devices{}
	for _, name := range a.Claims {
		if c := w.claims[name]; c != nil {
			read.Claims = append(read.Claims, *c)
		}
	}

	for _, at := range a.Pools {
		if s := w.slices[at.Node]; s != nil && s.Pool == at.Pool {
			read.Slices = append(read.Slices, *s)
		}
	}

	for _, name := range a.Rules {
		if r := w.rules[name]; r != nil {
			read.Rules = append(read.Rules, *r)
		}
	}
	return eviction.Answered{Devices: read}
}

func (w *World) writeStatus(a eviction.WriteStatus) eviction.Answered {
	before := w.rules[a.Rule]
	switch {
	case before == nil:
		return eviction.Answered{Outcome: eviction.Gone}
	case before.UID != a.UID:
		return eviction.Answered{Outcome: eviction.Conflict}
	}
	r := *before
	r.Condition = a.Condition
	r.Condition.LastTransitionTime = metav1.Time{Time: a.Condition.LastTransitionTime.Truncate(time.Second)}
	w.showRule(&r)
	return eviction.Answered{}
}

// dueByDevice is due for the taints of the pod's device. It does not share the Core's code: it
// looks at each taint, and each toleration of it, in turn.
func (w *World) dueByDevice(p *Pod) (least eviction.Due) {
	c := w.claims[p.Name]
	if c == nil || !slices.Contains(c.For, p.UID) || len(p.Claims) == 0 {
		return eviction.Due{}
	}

	use := c.Uses[0]
	var taints []v1.Taint
	if s := w.slices[use.Device.Pool]; s != nil {
		for _, device := range s.Devices {
			if device.Name == use.Device.Name {
				taints = append(taints, device.Taints...)
			}
		}
	}

	for _, r := range w.rules {
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

// checkStatuses checks, at the end, that the rules' statuses tell of the pods that they ask to go.
func (w *World) checkStatuses() {
	for _, r := range sortedValues(w.rules, cmp.Compare[string]) {
		pods := 0
		for _, p := range sortedValues(w.pods, byName) {
			c := w.claims[p.Name]
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

		if is := r.Condition; is.ObservedGeneration != r.Generation || (is.Status == metav1.ConditionTrue) != (pods > 0) {
			w.reportWrong("rule %s, generation %d, asks %d pods to go, and its status is %s %q of generation %d",
				r.Name, r.Generation, pods,
				is.Status, is.Message, is.ObservedGeneration)
		}
	}
}
