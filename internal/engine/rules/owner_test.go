// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func ownedPod(namespace, apiVersion, kind, name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "p", UID: "p",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}},
	}}
}

// TestOwnersAreKnownByUID verifies that a controller is identified by its UID within its namespace,
// and by its kind and name only if there is no UID.
func TestOwnersAreKnownByUID(t *testing.T) {
	web := ownedPod("a", "apps/v1", "ReplicaSet", "web", "1")
	for _, c := range []struct {
		what string
		pod  *v1.Pod
		same bool
	}{
		{"another version of the API", ownedPod("a", "apps/v1beta1", "ReplicaSet", "web", "1"), true},
		{"the UID alone counts", ownedPod("a", "apps/v1", "ReplicaSet", "other", "1"), true},
		{"made anew under its name", ownedPod("a", "apps/v1", "ReplicaSet", "web", "2"), false},
		{"of another namespace", ownedPod("b", "apps/v1", "ReplicaSet", "web", "1"), false},
		{"without a UID", ownedPod("a", "apps/v1", "ReplicaSet", "web", ""), false},
		{"without a controller", &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a"}}, false},
	} {
		if got := OwnerOf(c.pod) == OwnerOf(web); got != c.same {
			t.Errorf("%s: the same owner: %t, want %t", c.what, got, c.same)
		}
	}
	written := ownedPod("a", "apps/v1", "StatefulSet", "db", "")
	if foreign := ownedPod("a", "apps.kruise.io/v1beta1", "StatefulSet", "db", ""); OwnerOf(written) == OwnerOf(foreign) {
		t.Error("a StatefulSet of another API group passes for one of apps")
	}
	if set := (&metav1.ObjectMeta{Namespace: "a", Name: "db"}); AsOwner(StatefulSet, set) != OwnerOf(written) {
		t.Error("a workload without a UID is not found by its name")
	}
}

func TestSuccessors(t *testing.T) {
	victim := Predecessor{Namespace: "a", Name: "db-0", UID: "old", Owner: "1"}
	pod := func(namespace, apiVersion, kind, name string, uid, owner types.UID) *v1.Pod {
		p := ownedPod(namespace, apiVersion, kind, "db", owner)
		p.Name, p.UID = name, uid
		return p
	}
	for _, c := range []struct {
		what string
		pod  *v1.Pod
		may  bool
	}{
		{"a ReplicaSet's", pod("a", "apps/v1", "ReplicaSet", "db-x", "new", "1"), true},
		{"the pod itself", pod("a", "apps/v1", "ReplicaSet", "db-0", "old", "1"), false},
		{"of another controller", pod("a", "apps/v1", "ReplicaSet", "db-x", "new", "2"), false},
		{"of another namespace", pod("b", "apps/v1", "ReplicaSet", "db-x", "new", "1"), false},
		{"of the same ordinal", pod("a", "apps/v1", "StatefulSet", "db-0", "new", "1"), true},
		{"of another ordinal", pod("a", "apps/v1", "StatefulSet", "db-1", "new", "1"), false},
		{"of a controller that is no StatefulSet of apps", pod("a", "apps.kruise.io/v1beta1", "StatefulSet", "db-1", "new", "1"), true},
		{"without a controller", &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", UID: "new"}}, false},
	} {
		if got := victim.MayBeSucceededBy(c.pod); got != c.may {
			t.Errorf("%s: %t, want %t", c.what, got, c.may)
		}
	}
	if (Predecessor{Namespace: "a", UID: "bare"}).MayBeSucceededBy(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", UID: "new"}}) {
		t.Error("a pod without a controller has a successor")
	}
}
