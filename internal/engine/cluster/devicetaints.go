package cluster

import (
	"cmp"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// Tainted returns the slice as decisions see it: with the taints of the DeviceTaintRules that
// select its devices. It keeps the slice as published, from which a change of the rules begins. A
// slice that no rule selects is returned as it is.
func (o *Objects) Tainted(slice *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
	delete(o.published, slice.Name)
	tainted := slice
	for _, rule := range o.DeviceTaintRules.In("") {
		tainted = taintDevices(tainted, slice, rule)
	}
	if tainted != slice {
		if o.published == nil {
			o.published = map[string]*resourcev1.ResourceSlice{}
		}
		o.published[slice.Name] = slice
	}
	return tainted
}

// taintDevices returns the slice with the rule's taint on the devices that it selects. What it
// changes is a copy of the slice as published. slice may be such a copy already, made for an
// earlier rule.
func taintDevices(slice, published *resourcev1.ResourceSlice, rule *resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	if !selectsPool(rule, slice) {
		return slice
	}
	for i := range slice.Spec.Devices {
		if name := rule.Spec.DeviceSelector.Device; name != nil && *name != slice.Spec.Devices[i].Name {
			continue
		}
		if slice == published {
			slice = published.DeepCopy()
		}
		slice.Spec.Devices[i].Taints = append(slice.Spec.Devices[i].Taints, rule.Spec.Taint)
	}
	return slice
}

// selectsPool reports whether the rule can select devices of the slice. A rule without a selector
// selects none, and one with an empty selector all.
func selectsPool(rule *resourcev1.DeviceTaintRule, slice *resourcev1.ResourceSlice) bool {
	s := rule.Spec.DeviceSelector
	return s != nil && (s.Driver == nil || *s.Driver == slice.Spec.Driver) && (s.Pool == nil || *s.Pool == slice.Spec.Pool.Name)
}

// Unpublish forgets a slice that is gone as it was published.
func (o *Objects) Unpublish(name string) { delete(o.published, name) }

// Retaint replaces a rule by another of its name, nil for none, in the table and in the slices. It
// returns the slices in which that changes a taint, sorted by name, as they were.
func (o *Objects) Retaint(name string, now *resourcev1.DeviceTaintRule) (changed []*resourcev1.ResourceSlice) {
	before, had := o.DeviceTaintRules.Get("", name)
	if now != nil {
		o.DeviceTaintRules.Set(now)
	} else {
		o.DeviceTaintRules.Delete("", name)
	}
	if had && now != nil && apiequality.Semantic.DeepEqual(before.Spec, now.Spec) {
		return nil // only its status has changed
	}

	for slice := range o.ResourceSlices.Each {
		if had && selectsPool(before, slice) || now != nil && selectsPool(now, slice) {
			changed = append(changed, slice)
		}
	}
	slices.SortFunc(changed, func(a, b *resourcev1.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })

	return slices.DeleteFunc(changed, func(was *resourcev1.ResourceSlice) bool {
		published := o.published[was.Name]
		if published == nil {
			published = was
		}
		is := o.Tainted(published)
		if slices.EqualFunc(was.Spec.Devices, is.Spec.Devices, sameTaints) {
			return true
		}
		o.ResourceSlices.Set(is)
		return false
	})
}

// sameTaints compares the taints of two states of a device.
func sameTaints(a, b resourcev1.Device) bool {
	return apiequality.Semantic.DeepEqual(a.Taints, b.Taints)
}
