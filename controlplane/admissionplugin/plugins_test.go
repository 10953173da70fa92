// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiserver "k8s.io/apiserver/pkg/admission"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/admission/lookup"
)

// prepared initialises a plugin like the API server. If cold is set, the plugin's informers have
// not listed yet.
func prepared(t *testing.T, plugin *informed, cold bool, objects ...runtime.Object) {
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	if plugin.ValidateInitialization() == nil {
		t.Error("a plugin without client and informers is taken for initialised")
	}
	plugin.SetExternalKubeClientSet(client)
	plugin.SetExternalKubeInformerFactory(factory)
	if err := plugin.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	if !cold {
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(func() { cancel(); factory.Shutdown() })
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
}

func request(object runtime.Object, resource schema.GroupResource, subresource string, operation apiserver.Operation) apiserver.Attributes {
	return apiserver.NewAttributesRecord(object, object, schema.GroupVersionKind{}, "default", "x", resource.WithVersion("v1"), subresource, operation, nil, false, nil)
}

func newPods() *pods { return NewPod(admission.Config{}).(*pods) }

// TestColdCachesRefuse verifies that requests are rejected after ten seconds, and never given wrong
// defaults.
func TestColdCachesRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin := newPods()
		prepared(t, &plugin.informed, true)
		pod := &core.Pod{}
		began := time.Now()
		err := plugin.Admit(t.Context(), request(pod, core.Resource("pods"), "", apiserver.Create), nil)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "not yet ready to handle request") || pod.Spec.Priority != nil || len(pod.Spec.Tolerations) > 0 {
			t.Errorf("%v, %+v", err, pod.Spec)
		}
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("after %v", took)
		}
		// Readers that do not wait fail as well.
		if _, err := plugin.caches.For(t.Context()).DefaultPriorityClass(); err != lookup.ErrCold {
			t.Errorf("a cold cache knows of a default class: %v", err)
		}
	})
}

func TestSubresourcesAndOtherKindsPass(t *testing.T) {
	plugin := newPods() // not initialised: it would panic if it looked anything up
	for _, a := range []apiserver.Attributes{
		request(&core.Pod{}, core.Resource("pods"), "resize", apiserver.Update),
		request(&core.Pod{}, core.Resource("pods"), "status", apiserver.Update),
		request(&core.Binding{}, core.Resource("pods"), "binding", apiserver.Create),
		request(&core.Service{}, core.Resource("services"), "", apiserver.Create),
	} {
		if err := plugin.Admit(t.Context(), a, nil); err != nil {
			t.Error(err)
		}
		if err := plugin.Validate(t.Context(), a, nil); err != nil {
			t.Error(err)
		}
	}
	if plugin.Handles(apiserver.Delete) || plugin.Handles(apiserver.Connect) {
		t.Error("asked about what is deleted or connected to")
	}
}

func TestSecondDefaultIsRefusedWhateverTheCacheSays(t *testing.T) {
	plugin := NewPriority().(*priorities)
	prepared(t, &plugin.informed, true, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "first"}, GlobalDefault: true})
	class := &scheduling.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "second"}, GlobalDefault: true}
	err := plugin.Validate(t.Context(), request(class, scheduling.Resource("priorityclasses"), "", apiserver.Create), nil)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "PriorityClass first is already marked as default. Only one default can exist") {
		t.Error(err)
	}
}

func TestPodGroupsGetTheirPriorityWhereThatIsOn(t *testing.T) {
	plugin := NewPriority().(*priorities)
	prepared(t, &plugin.informed, false, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 7})
	admit := func(spec scheduling.PodGroupSpec) (*scheduling.PodGroup, error) {
		group := &scheduling.PodGroup{Spec: spec}
		return group, plugin.Admit(t.Context(), request(group, scheduling.Resource("podgroups"), "", apiserver.Create), nil)
	}
	if group, err := admit(scheduling.PodGroupSpec{PriorityClassName: "high"}); err != nil || group.Spec.Priority != nil {
		t.Errorf("switched off: %v, %v", group.Spec.Priority, err)
	}
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true,
	})
	if group, err := admit(scheduling.PodGroupSpec{PriorityClassName: "high"}); err != nil || group.Spec.Priority == nil || *group.Spec.Priority != 7 {
		t.Errorf("switched on: %v, %v", group.Spec.Priority, err)
	}
	if _, err := admit(scheduling.PodGroupSpec{PriorityClassName: "high", Priority: new(int32(8))}); !apierrors.IsForbidden(err) {
		t.Errorf("another number by hand: %v", err)
	}
	if _, err := admit(scheduling.PodGroupSpec{PriorityClassName: "absent"}); !apierrors.IsForbidden(err) {
		t.Errorf("a class that is not there: %v", err)
	}
}
