// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestClassesOfManyResourcesAreThoseOfEach requires the class of a resource to be independent of
// the number of resources looked up. Several classes provide the same resource, some by the name of
// the class.
func TestClassesOfManyResourcesAreThoseOfEach(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		c := cluster.New()
		for i := range 30 {
			class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i), CreationTimestamp: metav1.Unix(random.Int64N(3), 0)}}
			if random.IntN(4) > 0 {
				class.Spec.ExtendedResourceName = new(fmt.Sprint("e.io/", random.IntN(10)))
			}
			c.DeviceClasses.Set(class)
		}

		many := classesOf(c, fewNames+1)
		for i := range 20 {
			for _, name := range []v1.ResourceName{v1.ResourceName(fmt.Sprint("e.io/", i)), v1.ResourceName(fmt.Sprint(resourcev1.ResourceDeviceClassPrefix, "c", 2*i)), "cpu"} {
				if want := deviceClassOf(c, name); many(name) != want {
					t.Fatalf("%s: %v, want %v", name, many(name), want)
				}
			}
		}
	}
}

// TestThousandsOfShortagesAreToldInShort verifies that only the first shortages are named, and that
// the verdict on preemption includes a later unsatisfiable request.
func TestThousandsOfShortagesAreToldInShort(t *testing.T) {
	const names = 10_000
	scalars, lacks := make([]v1.ResourceName, names), make([]string, names)
	r, n := &cluster.Resources{Scalars: map[v1.ResourceName]int64{}}, &cluster.Node{Parts: cluster.Parts{Size: new(cluster.Size)}}
	n.Size.Pods, n.Size.Scalars, n.Requested.Scalars = 10, map[v1.ResourceName]int64{}, map[v1.ResourceName]int64{}
	for i := range names {
		name := v1.ResourceName(fmt.Sprintf("e.io/%05d", i))
		scalars[i], lacks[i], r.Scalars[name] = name, "Insufficient "+string(name), 1
		n.Size.Scalars[name], n.Requested.Scalars[name] = 1, 1
	}
	rejection := listShortages(r, scalars, lacks, nil, n)
	if len(rejection.Reasons) != mostShort+1 || rejection.Reasons[0] != "Insufficient e.io/00000" || rejection.Reasons[mostShort] != "Insufficient further resources" || rejection.Unresolvable {
		t.Errorf("%d reasons, unresolvable: %v", len(rejection.Reasons), rejection.Unresolvable)
	}
	delete(n.Size.Scalars, scalars[names-1])
	if rejection := listShortages(r, scalars, lacks, nil, n); len(rejection.Reasons) != mostShort+1 || !rejection.Unresolvable {
		t.Errorf("%d reasons, unresolvable: %v", len(rejection.Reasons), rejection.Unresolvable)
	}
	if rejection := listShortages(r, scalars[:mostShort], lacks, nil, n); len(rejection.Reasons) != mostShort {
		t.Errorf("%d reasons of %d", len(rejection.Reasons), mostShort)
	}

	n.Size.Scalars = nil // on a node without any of the resources the search ends early
	began := time.Now()
	for range 1000 {
		listShortages(r, scalars, lacks, nil, n)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("a thousand nodes took %v", took)
	}
}
