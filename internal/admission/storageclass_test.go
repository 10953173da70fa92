// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAClaimWithoutAClassGetsTheNewestDefault(t *testing.T) {
	class := func(name string, hour int, isDefault string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(hour)*3600, 0)), Annotations: map[string]string{defaultClassAnnotation: isDefault},
		}}
	}
	classes := []*storagev1.StorageClass{class("old", 1, "true"), class("b", 2, "true"), class("a", 2, "true"), class("newest", 3, "false")}
	chosen := DefaultStorageClass(classes)
	if chosen == nil || chosen.Name != "a" {
		t.Fatalf("got %v, want a", chosen)
	}
	for name, c := range map[string]struct {
		claim v1.PersistentVolumeClaim
		want  string
	}{
		"names none":       {v1.PersistentVolumeClaim{}, "a"},
		"names one":        {v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{StorageClassName: new("own")}}, "own"},
		"wants none":       {v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{StorageClassName: new("")}}, ""},
		"names one of old": {v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.BetaStorageClassAnnotation: "x"}}}, "none"},
		"has a volume":     {v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{VolumeName: "v"}}, "none"},
	} {
		Claim(&c.claim, chosen)
		got := "none"
		if c.claim.Spec.StorageClassName != nil {
			got = *c.claim.Spec.StorageClassName
		}
		if got != c.want {
			t.Errorf("a claim that %s got %q, want %q", name, got, c.want)
		}
	}
	Claim(&v1.PersistentVolumeClaim{}, DefaultStorageClass(nil)) // no default: no change
}
