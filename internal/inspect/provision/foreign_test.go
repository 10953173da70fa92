// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// TestANodeOfUnknownPricePays covers a kubelet that writes a note of an exchange on its own node:
// the execution then includes the node in its question.
func TestANodeOfUnknownPricePays(t *testing.T) {
	objects, catalog := halfEmpty(rand.New(rand.NewPCG(3, 77)), 12)
	plan := planReplacing(t, objects, catalog, simulate.Options{})
	if !plan.Replaced.Exchanges[0].Pays([]string{"node-of-unknown-price"}) {
		t.Error("the exchange does not pay without a node that is not in it")
	}
}

// TestOneHugePriceStopsNoPlan covers a node that sets a huge price for itself.
func TestOneHugePriceStopsNoPlan(t *testing.T) {
	for _, price := range []string{"1e6", "1.7e308"} {
		for _, stays := range []string{"true", "false"} {
			objects, catalog := halfEmpty(rand.New(rand.NewPCG(3, 77)), 12)
			for _, object := range objects {
				if n, ok := object.(*v1.Node); ok {
					n.Annotations = map[string]string{PriceAnnotation: price, disruption.KarpenterAnnotation: stays}
					break
				}
			}
			plan := planReplacing(t, objects, catalog, simulate.Options{})
			if _, err := json.Marshal(plan); err != nil || plan.Replaced.Hour < 1 {
				t.Errorf("price %q, stays %s: saves %v, %v", price, stays, plan.Replaced.Hour, err)
			}
		}
	}
}

// keepRoom keeps room for these buffers and templates on 20 nodes.
func keepRoom(t *testing.T, more []manifest.Document, objects ...metav1.Object) (*simulate.Done, error) {
	list, _ := halfEmpty(rand.New(rand.NewPCG(3, 77)), 20)
	set := manifest.Assemble("test", append(list, objects...))
	set.ForPlans = more
	w, err := simulate.Open(set, simulate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return (&Options{}).KeepRoom(w)
}

const hugeTemplate = `{"metadata": {"namespace": "tenant", "name": "t"},
 "template": {"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1000"}}}]}}}`

// buffer returns a CapacityBuffer of the huge template.
func buffer(name string, replicas int) manifest.Document {
	return manifest.Document{Kind: manifest.CapacityBuffer, Text: fmt.Appendf(nil,
		`{"metadata": {"namespace": "tenant", "name": %q}, "spec": {"podTemplateRef": {"name": "t"}, "replicas": %d}}`, name, replicas)}
}

// TestBuffersAreBoundedInSum covers a tenant with many buffers of the largest size.
func TestBuffersAreBoundedInSum(t *testing.T) {
	more := []manifest.Document{{Kind: manifest.PodTemplate, Text: []byte(hugeTemplate)}}
	for i := range 10 {
		more = append(more, buffer(fmt.Sprint("b", i), mostPlaceholders))
	}
	done, err := keepRoom(t, more)
	if err != nil || len(done.Notes) < 9 {
		t.Errorf("only %v are refused, %v", done, err)
	}
}

// TestATenantMayUseTheNameOfPlaceholders covers a tenant's ReplicaSet with the name of one of the
// simulated workloads.
func TestATenantMayUseTheNameOfPlaceholders(t *testing.T) {
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: placeholder + "-0", UID: "x"}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	set.Spec.Template.Labels = map[string]string{"a": "b"}
	set.Spec.Template.Spec.Containers = []v1.Container{{Name: "c", Image: "i"}}
	set.Spec.Replicas = new(int32)
	if _, err := keepRoom(t, []manifest.Document{{Kind: manifest.PodTemplate, Text: []byte(hugeTemplate)}, buffer("b", 1)}, set); err != nil {
		t.Error(err)
	}
}
