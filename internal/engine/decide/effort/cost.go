package effort

import "github.com/berth-k8s/berth/internal/engine/cluster"

// CostOfPod is how many times as long as a plain pod this pod takes to judge: most filters look at
// the items that the pod lists, one by one.
func CostOfPod(p *cluster.Pod) int {
	ports, spec := 0, p.Spec()
	for i := range spec.Containers {
		ports += len(spec.Containers[i].Ports)
	}
	return 1 + ports/8 + 2*len(spec.Volumes) + 8*len(spec.ResourceClaims)
}

// CostOfPreparing is the cost of preparing all filters for the cluster as it is: filters that
// count pods by domain look at every node, and the pods there, for each of their terms.
func CostOfPreparing(c *cluster.Cluster, p *cluster.Pod) int {
	terms := 1 + len(p.Spec().TopologySpreadConstraints) + p.Class.CountRequired()
	return CostOfPod(p) + terms*(c.Len()+c.Pods())/4
}

// CostOfScan is the cost of judging all nodes the plain way.
func CostOfScan(c *cluster.Cluster, p *cluster.Pod) int {
	return CostOfPreparing(c, p) + CostOfPod(p)*c.Len()
}

// CostOfBulk is what it costs beyond that to sort all nodes for pods of a class that lists
// thousands of terms.
func CostOfBulk(c *cluster.Cluster, class *cluster.PodClass) int {
	const judgement = 2 << 10 // so many bytes
	return c.Len() * (class.Bulk / judgement)
}
