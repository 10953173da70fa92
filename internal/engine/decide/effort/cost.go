// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package effort

import "github.com/berth-k8s/berth/internal/engine/cluster"

// CostOfPod returns the cost of judging this pod relative to a plain pod: most filters iterate over
// the items listed by the pod.
func CostOfPod(p *cluster.Pod) int {
	ports, spec := 0, p.Spec()
	for i := range spec.Containers {
		ports += len(spec.Containers[i].Ports)
	}
	return 1 + ports/8 + 2*len(spec.Volumes) + 8*len(spec.ResourceClaims)
}

// CostOfPreparing returns the cost of preparing all filters for the current cluster: filters that
// count pods by domain scan all nodes and their pods for each of their terms.
func CostOfPreparing(c *cluster.Cluster, p *cluster.Pod) int {
	terms := 1 + len(p.Spec().TopologySpreadConstraints) + p.Class.CountRequired()
	return CostOfPod(p) + terms*(c.Len()+c.Pods())/4
}

// CostOfScan returns the cost of judging all nodes with Plain.
func CostOfScan(c *cluster.Cluster, p *cluster.Pod) int {
	return CostOfPreparing(c, p) + CostOfPod(p)*c.Len()
}

// CostOfBulk returns the additional cost of sorting all nodes for pods of an unusually large class;
// see cluster.PodClass.Bulk.
func CostOfBulk(c *cluster.Cluster, class *cluster.PodClass) int {
	const judgement = 2 << 10 // bytes of bulk that cost as much as one judgement per node
	return c.Len() * (class.Bulk / judgement)
}
