// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"net/http"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

func aTaintRule(driver string, effect resourcev1.DeviceTaintEffect) *resourcev1.DeviceTaintRule {
	return &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "recall"},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: &driver},
			Taint:          resourcev1.DeviceTaint{Key: "recalled", Effect: effect},
		},
	}
}

// TestTaintRuleKeepsDevicesBack verifies that a DeviceTaintRule prevents the allocation of its
// devices until the rule is changed or deleted, which requeues the pod, and that it has no effect
// if the feature gate is disabled.
func TestTaintRuleKeepsDevicesBack(t *testing.T) {
	const driver = "gpu.example.com"
	for name, ends := range map[string]func(w *world, rule *resourcev1.DeviceTaintRule){
		"deleted": func(w *world, rule *resourcev1.DeviceTaintRule) { w.api.Delete(rule) },
		"other effect": func(w *world, rule *resourcev1.DeviceTaintRule) {
			fakeapi.Change(w.api, rule, func(r *resourcev1.DeviceTaintRule) { r.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNone })
		},
		"other devices": func(w *world, rule *resourcev1.DeviceTaintRule) {
			fakeapi.Change(w.api, rule, func(r *resourcev1.DeviceTaintRule) { *r.Spec.DeviceSelector.Driver = "nic.example.com" })
		},
		"no selector": func(w *world, rule *resourcev1.DeviceTaintRule) {
			fakeapi.Change(w.api, rule, func(r *resourcev1.DeviceTaintRule) { r.Spec.DeviceSelector = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				rule := aTaintRule(driver, resourcev1.DeviceTaintEffectNoSchedule)
				w.api.Put(aNode("n", "9"), rule)
				w.api.Put(aDriver("n", "gpu-0")...)
				w.api.Put(aClaim("c"), claiming(aPod("p", "1"), "c"))
				w.start(Options{})
				w.until("p is turned down", func() bool { return strings.Contains(w.condition("p"), "cannot allocate all claims") })
				w.pass(time.Minute) // longer than its back-off
				ends(w, rule)
				w.pass(5 * time.Second) // much less than MaxWait
				if w.nodeOf("p") != "n" {
					t.Error("p has not been woken")
				}
			})
		})
	}
	inWorld(t, func(w *world) {
		w.api.Put(aNode("n", "9"), aTaintRule(driver, resourcev1.DeviceTaintEffectNoExecute))
		w.api.Put(aDriver("n", "gpu-0")...)
		w.api.Put(aClaim("c"), claiming(aPod("p", "1"), "c"))
		w.start(Options{Disabled: cycle.Disabled{DeviceTaintRules: true}})
		w.untilBound("p")
	})
}

// TestServerWithoutTaintRules verifies that if the API server does not serve DeviceTaintRules, or
// they cannot be read, devices are allocated without them, and that the rules apply when they can
// be read.
func TestServerWithoutTaintRules(t *testing.T) {
	for name, status := range map[string]int{"not served": http.StatusNotFound, "forbidden": http.StatusForbidden} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				asked := 0
				w.api.SetFault(func(r *http.Request) fakeapi.Fault {
					if strings.HasSuffix(r.URL.Path, "/devicetaintrules") {
						asked++
						return fakeapi.Fault{Status: status}
					}
					return fakeapi.Fault{}
				})
				w.api.Put(aNode("n", "9"), aTaintRule("gpu.example.com", resourcev1.DeviceTaintEffectNoSchedule))
				w.api.Put(aDriver("n", "gpu-0", "gpu-1")...)
				w.api.Put(aClaim("c"), claiming(aPod("p", "1"), "c"))
				w.start(Options{})
				w.untilBound("p")
				w.pass(3 * devicesAgain)
				if asked < 2 || asked > 6 {
					t.Errorf("asked for rules %d times in three minutes", asked)
				}

				w.api.SetFault(nil)
				w.pass(2 * devicesAgain)
				w.api.Put(aClaim("d"), claiming(aPod("q", "1"), "d"))
				w.until("q is turned down", func() bool { return strings.Contains(w.condition("q"), "cannot allocate all claims") })
			})
		})
	}
}
