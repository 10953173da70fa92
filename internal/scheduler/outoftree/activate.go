// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"reflect"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// podsToActivate is the key under which plugins leave pods for activation. They are activated after
// the current pod's scheduling cycle, and again after its binding.
const podsToActivate fwk.StateKey = "kubernetes.io/pods-to-activate"

// ActivatesBy reports whether data is of kube-scheduler's type PodsToActivate, or of the same
// shape: a pointer to a struct with a lock and a map of pods. The type is in k8s.io/kubernetes
// itself, which Berth does not import.
func ActivatesBy(data fwk.StateData) bool {
	_, locks := data.(sync.Locker)
	return locks && podsIn(data).IsValid()
}

// podsIn returns the field Map of the struct pointed to by data, and the zero Value if data has
// another shape. Reflection replaces kube-scheduler's type: a plugin is compiled against
// k8s.io/kubernetes and asserts its own type, so Berth must accept any value.
func podsIn(data fwk.StateData) (pods reflect.Value) {
	pointer := reflect.ValueOf(data)
	if pointer.Kind() != reflect.Pointer || pointer.IsNil() || pointer.Elem().Kind() != reflect.Struct {
		return pods
	}
	if pods = pointer.Elem().FieldByName("Map"); pods.IsValid() && pods.Type() != reflect.TypeFor[map[string]*v1.Pod]() {
		return reflect.Value{}
	}
	return pods
}

// activatePods activates the pods left by plugins in the cycle's state, and clears the map, so that
// a second call in the same attempt activates only the pods added since. Like upstream, Berth calls
// it after a successful scheduling cycle and after the binding; the pods left in a failed cycle are
// dropped with its state.
func (y *session) activatePods() {
	data, err := y.state.Read(podsToActivate)
	if err != nil || !ActivatesBy(data) {
		return
	}
	// A plugin may still add pods from a goroutine it started; upstream's type has the lock for
	// that.
	lock := data.(sync.Locker)
	lock.Lock()
	pods := podsIn(data)
	var list []types.UID
	for _, pod := range pods.Interface().(map[string]*v1.Pod) {
		list = append(list, pod.UID)
	}
	pods.Clear()
	lock.Unlock()
	if host := y.f.set.host(); host != nil && len(list) > 0 {
		host.Activate(list...)
	}
}
