// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
)

// instanceTypes returns the types of Karpenter's benchmark, with 1 to 400 CPUs, and with 2Gi of
// memory and 10 pods per CPU. Each type is available as spot in two zones and on demand in three
// zones, at the same price.
func instanceTypes() []*cloudprovider.InstanceType { return fake.InstanceTypes(400) }

// nodePool returns the pool of Karpenter's benchmark, with the name `default` and the defaults of
// its CRD: any type, any zone, any capacity type, and limits that are never reached.
func nodePool() *v1.NodePool {
	pool := &v1.NodePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: "karpenter.sh/v1", Kind: "NodePool"},
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
	}

	pool.Spec.Limits = v1.Limits{
		corev1.ResourceCPU:    resource.MustParse("10000000"),
		corev1.ResourceMemory: resource.MustParse("10000000Gi"),
	}

	pool.Spec.Template.Spec = v1.NodeClaimTemplateSpec{
		ExpireAfter:  after(720 * time.Hour),
		NodeClassRef: &v1.NodeClassReference{Group: "karpenter.kwok.sh", Kind: "KWOKNodeClass", Name: "default"},
		Requirements: []v1.NodeSelectorRequirementWithMinValues{},
	}

	pool.Spec.Disruption = v1.Disruption{
		Budgets:             []v1.Budget{{Nodes: "10%"}},
		ConsolidateAfter:    after(0),
		ConsolidationPolicy: v1.ConsolidationPolicyWhenEmptyOrUnderutilized,
	}
	return pool
}

// after returns a duration that is encoded correctly. The result of MustParseNillableDuration would
// be encoded as base64 in JSON.
func after(d time.Duration) v1.NillableDuration { return v1.NillableDuration{Duration: &d} }
