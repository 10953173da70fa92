// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// models holds a pod of each controller. The pods of a controller differ in a few fields, so the
// rest of their memory is shared.
type models map[types.UID]*v1.Pod

// share replaces parts of a decoded pod by equal parts of another pod of its controller. known is
// the earlier object of this name, or nil; p is nil if the pod was deleted.
func (m models) share(p, known *v1.Pod) {
	// Tenants may change the controller, and a list may replace a pod without its deletion.
	if known != nil && (p == nil || p.UID != known.UID || ownerOf(p) != ownerOf(known)) {
		if model := m[ownerOf(known)]; model != nil && model.UID == known.UID {
			delete(m, ownerOf(known))
		}
	}
	if p == nil || ownerOf(p) == "" {
		return
	}
	model := m[ownerOf(p)]
	if model == nil || model.UID == p.UID {
		m[ownerOf(p)] = p
	}
	if model != nil {
		share(reflect.ValueOf(p).Elem(), reflect.ValueOf(model).Elem())
	}
}

// ownerOf returns the UID of a pod's controller, or "".
func ownerOf(p *v1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
		return owner.UID
	}
	return ""
}

// share replaces the parts of v that refer to memory by equal parts of model. It reports whether
// the values are equal.
func share(v, model reflect.Value) bool {
	equal := true
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			equal = share(v.Field(i), model.Field(i)) && equal
		}
		return equal
	case reflect.Slice:
		if equal = v.Len() == model.Len() && v.IsNil() == model.IsNil(); equal {
			for i := range v.Len() {
				equal = share(v.Index(i), model.Index(i)) && equal
			}
		}

	case reflect.Map:
		equal = v.Len() == model.Len() && v.IsNil() == model.IsNil()
		for entry := v.MapRange(); equal && entry.Next(); {
			other := model.MapIndex(entry.Key())
			equal = other.IsValid() && share(entry.Value(), other)
		}
	case reflect.Pointer:
		if v.IsNil() || model.IsNil() {
			return v.IsNil() && model.IsNil()
		}
		equal = share(v.Elem(), model.Elem())
	case reflect.Interface:
		return v.IsNil() && model.IsNil()
	default:
		equal = v.Equal(model)
	}
	if equal && v.CanSet() {
		v.Set(model)
	}
	return equal
}
