// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/ui/model"
)

// TestAPodThatNoSchedulerTriesSaysWhy verifies that the known reasons of a pending pod without a
// condition are shown: no scheduler serves it, or one of its claims does not exist.
func TestAPodThatNoSchedulerTriesSaysWhy(t *testing.T) {
	c := model.New()
	c.Serve([]string{"default-scheduler", "berth-scheduler"})
	shown := map[string]string{}
	says := func(step, name, want string) {
		t.Helper()
		if d := c.Changes(noon); d != nil && d.Queue != nil {
			for _, row := range d.Queue.Rows {
				shown[row.Name] = row.Message
			}
		}
		if shown[name] != want {
			t.Errorf("%s: %q says %q, want %q", step, name, shown[name], want)
		}
	}
	fresh := func(name, scheduler string, claims ...v1.PodResourceClaim) *v1.Pod {
		p := pod(name, "")
		p.Spec.SchedulerName, p.Spec.ResourceClaims = scheduler, claims
		return p
	}
	gpu, template := "gpu", "template"
	see(c, noon, fresh("plain", "berth-scheduler"), fresh("foreign", "other"),
		fresh("claiming", "default-scheduler", v1.PodResourceClaim{Name: "device", ResourceClaimName: &gpu}),
		fresh("templated", "default-scheduler", v1.PodResourceClaim{Name: "device", ResourceClaimTemplateName: &template}))
	says("seen", "plain", "")
	says("seen", "foreign", `it is for the scheduler "other", which Berth does not serve here`)
	says("before claims are listed", "claiming", "")
	says("seen", "templated", `pod "default/templated": ResourceClaim not created yet`)
	c.Serve([]string{"default-scheduler", "berth-scheduler", "other"})
	says("its scheduler is Berth's now", "foreign", "")
	c.Serve([]string{"default-scheduler", "berth-scheduler"})
	says("it no longer is", "foreign", `it is for the scheduler "other", which Berth does not serve here`)
	c.ClaimsListing()
	c.ClaimsListed()
	says("no claim", "claiming", `could not find ResourceClaim "default/gpu"`)
	c.ClaimSeen(types.NamespacedName{Namespace: "default", Name: "gpu"})
	says("the claim is made", "claiming", "")
	c.ClaimGone(types.NamespacedName{Namespace: "default", Name: "gpu"})
	says("the claim is deleted", "claiming", `could not find ResourceClaim "default/gpu"`)
	c.ClaimsListing()
	c.ClaimSeen(types.NamespacedName{Namespace: "default", Name: "gpu"})
	c.ClaimsListed()
	says("listed again", "claiming", "")
	c.ClaimsListing()
	c.ClaimsListed()
	says("listed without", "claiming", `could not find ResourceClaim "default/gpu"`)

	see(c, noon, pending("claiming", "0/3 nodes are available"))
	says("once it was tried", "claiming", "0/3 nodes are available")
	made := "templated-device-x"
	p := fresh("templated", "default-scheduler", v1.PodResourceClaim{Name: "device", ResourceClaimTemplateName: &template})
	p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "device", ResourceClaimName: &made}}
	c.ClaimSeen(types.NamespacedName{Namespace: "default", Name: made})
	see(c, noon, p)
	says("its claim is made", "templated", "")
}

// TestPodsOnNodesThatDoNotExistAreCountedApart verifies that pods bound to a missing node are
// counted separately.
func TestPodsOnNodesThatDoNotExistAreCountedApart(t *testing.T) {
	c := model.New()
	see(c, noon, node("node-1", "z1"), pod("a", "node-1"), pod("b", "nowhere"))
	if s := c.Changes(noon).Summary; s.Pods != 1 || s.Astray != 1 {
		t.Errorf("%+v", s)
	}
	see(c, noon, node("nowhere", "z1"))
	if s := c.Changes(noon).Summary; s.Pods != 2 || s.Astray != 0 {
		t.Errorf("once it exists: %+v", s)
	}
}
