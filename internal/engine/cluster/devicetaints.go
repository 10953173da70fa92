// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// Tainted returns the slice as seen by decisions: with the taints of the DeviceTaintRules that
// select its devices. It keeps the published slice, as the base for later changes of the rules. A
// slice that no rule selects is returned unchanged.
func (o *Objects) Tainted(slice *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
	delete(o.published, slice.Name)
	tainted := slice
	for _, rule := range o.DeviceTaintRules.InNamespace("") {
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

// taintDevices returns the slice with the rule's taint on the selected devices. It only changes
// copies of the published slice; slice may already be such a copy, made for an earlier rule.
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
// selects no devices; a rule with an empty selector selects all devices.
func selectsPool(rule *resourcev1.DeviceTaintRule, slice *resourcev1.ResourceSlice) bool {
	s := rule.Spec.DeviceSelector
	return s != nil && (s.Driver == nil || *s.Driver == slice.Spec.Driver) && (s.Pool == nil || *s.Pool == slice.Spec.Pool.Name)
}

// Unpublish drops the published state of a deleted slice.
func (o *Objects) Unpublish(name string) { delete(o.published, name) }

// Retaint replaces the named rule, or deletes it if rule is nil, in the table and in the slices. It
// returns the previous states of the slices whose taints change, sorted by name.
func (o *Objects) Retaint(name string, rule *resourcev1.DeviceTaintRule) (changed []*resourcev1.ResourceSlice) {
	before, had := o.DeviceTaintRules.Get("", name)
	if rule != nil {
		o.DeviceTaintRules.Set(rule)
	} else {
		o.DeviceTaintRules.Delete("", name)
	}
	if had && rule != nil && apiequality.Semantic.DeepEqual(before.Spec, rule.Spec) {
		return nil // only its status has changed
	}

	for slice := range o.ResourceSlices.Each {
		if had && selectsPool(before, slice) || rule != nil && selectsPool(rule, slice) {
			changed = append(changed, slice)
		}
	}
	slices.SortFunc(changed, func(a, b *resourcev1.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })

	return slices.DeleteFunc(changed, func(was *resourcev1.ResourceSlice) bool {
		is := o.Tainted(cmp.Or(o.published[was.Name], was))
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
