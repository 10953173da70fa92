// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var traits = slices.Concat(traitsOfNodes, traitsOfPods, traitsOfPlacing, traitsOfVolumes, traitsOfDevices, traitsOfProfiles)

var traitsOfNodes = []trait{
	ofNodes("nodes without labels", func(n *v1.Node) bool {
		had := n.Labels == nil
		if had {
			n.Labels = map[string]string{v1.LabelHostname: n.Name, v1.LabelTopologyZone: "z1", "disk": "ssd"}
		}
		return had
	}),
	ofNodes("host names that are not the node's", func(n *v1.Node) bool {
		had := n.Labels[v1.LabelHostname] != n.Name
		if had && n.Labels != nil {
			n.Labels[v1.LabelHostname] = n.Name
		}
		return had && n.Labels != nil
	}),
	ofNodes("cordons", func(n *v1.Node) bool { return cleared(&n.Spec.Unschedulable) }),
	ofNodes("the taint of cordons", func(n *v1.Node) bool {
		return dropped(&n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeUnschedulable })
	}),
	ofNodes("images of several names", func(n *v1.Node) (had bool) {
		for i := range n.Status.Images {
			if names := n.Status.Images[i].Names; len(names) > 1 {
				n.Status.Images[i].Names, had = names[:1], true
			}
		}
		return had
	}),
	ofNodes("images of other sizes than elsewhere", func(n *v1.Node) (had bool) {
		for i := range n.Status.Images {
			usual := imageSizes[n.Status.Images[i].Names[0]]
			had = had || n.Status.Images[i].SizeBytes != usual
			n.Status.Images[i].SizeBytes = usual
		}
		return had
	}),
	ofNodes("declared features", func(n *v1.Node) bool { return clearedList(&n.Status.DeclaredFeatures) }),
	ofNodes("sizes of none", func(n *v1.Node) (had bool) {
		for name, q := range n.Status.Allocatable {
			if q.IsZero() {
				n.Status.Allocatable[name] = resource.MustParse("100")
				had = true
			}
		}
		return had
	}),
}

var traitsOfPods = []trait{
	ofResource("huge pages", func(r v1.ResourceName, _ resource.Quantity) bool { return r == hugePages }),
	ofResource("huge pages of 1Gi", func(r v1.ResourceName, _ resource.Quantity) bool { return r == giantPages }),
	ofResource("ephemeral storage", func(r v1.ResourceName, _ resource.Quantity) bool { return r == v1.ResourceEphemeralStorage }),
	ofResource("requests of zero", func(_ v1.ResourceName, q resource.Quantity) bool { return q.IsZero() }),
	ofResource("requests beyond what is usual", func(_ v1.ResourceName, q resource.Quantity) bool { return q.Value() > 1<<50 }),
	ofResource("resources that no node has", func(r v1.ResourceName, _ resource.Quantity) bool { return r == "example.com/nowhere" }),
	ofPods("overhead", func(p *v1.Pod) bool {
		had := len(p.Spec.Overhead) > 0
		p.Spec.Overhead = nil
		return had
	}),
	ofPods("requests of the pod level", func(p *v1.Pod) bool { return cleared(&p.Spec.Resources) }),
	ofPods("sidecars", func(p *v1.Pod) bool {
		return each(pointers(p.Spec.InitContainers), func(c *v1.Container) bool { return cleared(&c.RestartPolicy) })
	}),
	ofPods("init containers", func(p *v1.Pod) bool { return clearedList(&p.Spec.InitContainers) }),
	ofPods("resizes in the status", func(p *v1.Pod) bool {
		had := len(p.Status.ContainerStatuses)+len(p.Status.InitContainerStatuses) > 0
		p.Status.ContainerStatuses, p.Status.InitContainerStatuses = nil, nil
		return had
	}),
	ofPods("resizes of the pod level", func(p *v1.Pod) bool {
		had := p.Status.Resources != nil
		p.Status.Resources, p.Status.AllocatedResources = nil, nil
		return had
	}),
	ofPods("resizes that are not feasible", func(p *v1.Pod) bool {
		return dropped(&p.Status.Conditions, func(c v1.PodCondition) bool { return c.Reason == v1.PodReasonInfeasible })
	}),
	ofContainers("host ports", func(c *v1.Container) bool {
		return dropped(&c.Ports, func(p v1.ContainerPort) bool { return p.HostPort > 0 })
	}),
	ofContainers("host addresses", func(c *v1.Container) bool {
		return each(pointers(c.Ports), func(p *v1.ContainerPort) bool { return cleared(&p.HostIP) })
	}),
	ofPods("preemption policies", func(p *v1.Pod) bool { return cleared(&p.Spec.PreemptionPolicy) }),
	ofPods("the least and the greatest priorities", func(p *v1.Pod) bool {
		had := p.Spec.Priority != nil && (*p.Spec.Priority < -10 || *p.Spec.Priority > 1000)
		if had {
			p.Spec.Priority = new(int32(1000))
		}
		return had
	}),
	ofPods("pods that terminate", func(p *v1.Pod) bool { return cleared(&p.DeletionTimestamp) }),
	ofPods("pods that are not started", func(p *v1.Pod) bool {
		had := p.Spec.NodeName != "" && p.Status.StartTime == nil
		if had {
			p.Status.StartTime = new(metav1.NewTime(epoch))
		}
		return had
	}),
	ofPods("image volumes", func(p *v1.Pod) bool {
		return dropped(&p.Spec.Volumes, func(v v1.Volume) bool { return v.Image != nil })
	}),
	{"nominated pods", func(w *World) bool { return clearedList(&w.Nominated) }},
	{"pods that are nominated and wait", func(w *World) bool {
		return each(w.Pending, func(p *v1.Pod) bool { return cleared(&p.Status.NominatedNodeName) })
	}},
	ofKindThere("budgets without a selector", func(b *policyv1.PodDisruptionBudget) bool {
		had := b.Spec.Selector == nil
		b.Spec.Selector = &metav1.LabelSelector{}
		return had
	}),
	ofKindThere("budgets", func(b *policyv1.PodDisruptionBudget) bool {
		had := b.Status.DisruptionsAllowed < 100
		b.Status.DisruptionsAllowed = 100
		return had
	}),
	ofKindThere("pods that budgets count as gone", func(b *policyv1.PodDisruptionBudget) bool {
		had := len(b.Status.DisruptedPods) > 0
		b.Status.DisruptedPods = nil
		return had
	}),
}

var traitsOfPlacing = []trait{
	ofTolerations("tolerations by Gt and Lt", func(t *v1.Toleration) bool { return t.Operator == v1.TolerationOpGt || t.Operator == v1.TolerationOpLt }),
	ofTolerations("tolerations of everything", func(t *v1.Toleration) bool { return t.Key == "" }),
	ofTolerations("tolerations of one effect", func(t *v1.Toleration) bool { return t.Effect != "" }),
	ofNodeTerms("nodes by name", func(t *v1.NodeSelectorTerm) bool { return clearedList(&t.MatchFields) }),
	ofNodeTerms("nodes by several names", func(t *v1.NodeSelectorTerm) (had bool) {
		for i := range t.MatchFields {
			if values := t.MatchFields[i].Values; len(values) > 1 {
				t.MatchFields[i].Values, had = values[:1], true
			}
		}
		return had
	}),
	ofNodeTerms("nodes by Gt and Lt", func(t *v1.NodeSelectorTerm) bool {
		return dropped(&t.MatchExpressions, func(r v1.NodeSelectorRequirement) bool {
			return r.Operator == v1.NodeSelectorOpGt || r.Operator == v1.NodeSelectorOpLt
		})
	}),
	ofPods("node selectors", func(p *v1.Pod) bool {
		had := len(p.Spec.NodeSelector) > 0
		p.Spec.NodeSelector = nil
		return had
	}),
	ofTerms("matchLabelKeys of affinity", func(t *v1.PodAffinityTerm) bool { return unmerged(t, t.MatchLabelKeys, metav1.LabelSelectorOpIn) }),
	ofTerms("mismatchLabelKeys", func(t *v1.PodAffinityTerm) bool { return unmerged(t, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn) }),
	ofTerms("namespaces by name", func(t *v1.PodAffinityTerm) bool { return clearedList(&t.Namespaces) }),
	ofTerms("all namespaces", func(t *v1.PodAffinityTerm) bool {
		had := t.NamespaceSelector != nil && len(t.NamespaceSelector.MatchLabels)+len(t.NamespaceSelector.MatchExpressions) == 0
		if had {
			t.NamespaceSelector = nil
		}
		return had
	}),
	ofTerms("namespaces by label", func(t *v1.PodAffinityTerm) bool { return cleared(&t.NamespaceSelector) }),
	ofTerms("terms without a selector", func(t *v1.PodAffinityTerm) bool {
		had := t.LabelSelector == nil
		if had {
			t.LabelSelector = &metav1.LabelSelector{}
		}
		return had
	}),
	ofConstraints("minDomains", func(c *v1.TopologySpreadConstraint) bool { return cleared(&c.MinDomains) }),
	ofConstraints("nodeAffinityPolicy", func(c *v1.TopologySpreadConstraint) bool { return cleared(&c.NodeAffinityPolicy) }),
	ofConstraints("nodeTaintsPolicy", func(c *v1.TopologySpreadConstraint) bool { return cleared(&c.NodeTaintsPolicy) }),
	ofConstraints("matchLabelKeys of spreading", func(c *v1.TopologySpreadConstraint) bool { return clearedList(&c.MatchLabelKeys) }),
	ofConstraints("spreading without a selector", func(c *v1.TopologySpreadConstraint) bool {
		had := c.LabelSelector == nil
		if had {
			c.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		}
		return had
	}),
}

// unmerged removes from a term the requirements that the API server derived from the keys.
func unmerged(t *v1.PodAffinityTerm, keys []string, operator metav1.LabelSelectorOperator) bool {
	if len(keys) == 0 {
		return false
	}
	return dropped(&t.LabelSelector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Operator == operator && slices.Contains(keys, r.Key)
	})
}

var traitsOfVolumes = []trait{
	ofKindThere("block volumes", func(c *v1.PersistentVolumeClaim) bool {
		had := c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == v1.PersistentVolumeBlock
		c.Spec.VolumeMode = nil
		return had
	}),
	ofKindThere("classes of volume attributes", func(c *v1.PersistentVolumeClaim) bool { return cleared(&c.Spec.VolumeAttributesClassName) }),
	ofKindThere("storage classes by annotation", func(c *v1.PersistentVolumeClaim) bool {
		_, had := c.Annotations[v1.BetaStorageClassAnnotation]
		delete(c.Annotations, v1.BetaStorageClassAnnotation)
		return had
	}),
	ofKindThere("volumes that are deleted", func(v *v1.PersistentVolume) bool { return cleared(&v.DeletionTimestamp) }),
	ofKindThere("reach of volumes", func(v *v1.PersistentVolume) bool { return cleared(&v.Spec.NodeAffinity) }),
	ofKindThere("zones of volumes", func(v *v1.PersistentVolume) bool {
		had := len(v.Labels) > 0
		v.Labels = nil
		return had
	}),
	ofKindThere("volumes for one pod", func(c *v1.PersistentVolumeClaim) bool {
		had := c.Spec.AccessModes[0] == v1.ReadWriteOncePod
		if had {
			c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		}
		return had
	}),
	ofKindThere("selectors of volumes", func(c *v1.PersistentVolumeClaim) bool { return cleared(&c.Spec.Selector) }),
	ofKindThere("claims that are deleted", func(c *v1.PersistentVolumeClaim) bool { return cleared(&c.DeletionTimestamp) }),
	ofKindThere("claims that are lost", func(c *v1.PersistentVolumeClaim) bool {
		had := c.Status.Phase == v1.ClaimLost
		if had {
			c.Status.Phase = v1.ClaimPending
		}
		return had
	}),
	ofKindThere("allowed topologies", func(c *storagev1.StorageClass) bool { return clearedList(&c.AllowedTopologies) }),
	ofKindThere("immediate binding", func(c *storagev1.StorageClass) bool {
		had := *c.VolumeBindingMode == storagev1.VolumeBindingImmediate
		*c.VolumeBindingMode = storagev1.VolumeBindingWaitForFirstConsumer
		return had
	}),
	ofKindThere("limits of volumes", func(n *storagev1.CSINode) bool {
		return each(pointers(n.Spec.Drivers), func(d *storagev1.CSINodeDriver) bool { return cleared(&d.Allocatable) })
	}),
	ofKindThere("migrated plugins", func(n *storagev1.CSINode) bool {
		had := len(n.Annotations) > 0
		n.Annotations = nil
		return had
	}),
	{"attachments", func(w *World) bool {
		return dropped(&w.Others, func(o runtime.Object) bool { _, is := o.(*storagev1.VolumeAttachment); return is })
	}},
	ofKindThere("amounts of storage", func(c *storagev1.CSIStorageCapacity) bool {
		c.Capacity, c.MaximumVolumeSize = resource.NewQuantity(100*gibi, resource.BinarySI), nil
		return true
	}),
	ofPods("disks in pods", func(p *v1.Pod) bool {
		return dropped(&p.Spec.Volumes, func(v v1.Volume) bool {
			return v.AWSElasticBlockStore != nil || v.GCEPersistentDisk != nil || v.ISCSI != nil || v.RBD != nil || v.AzureDisk != nil
		})
	}),
	ofPods("ephemeral volumes", func(p *v1.Pod) bool {
		return dropped(&p.Spec.Volumes, func(v v1.Volume) bool { return v.Ephemeral != nil })
	}),
}

var traitsOfDevices = []trait{
	ofKindThere("shared counters", func(s *resourcev1.ResourceSlice) (had bool) {
		for i := range s.Spec.Devices {
			had = clearedList(&s.Spec.Devices[i].ConsumesCounters) || had
		}
		return had
	}),
	ofDevices("devices for several claims", func(d *resourcev1.Device) bool { return cleared(&d.AllowMultipleAllocations) }),
	ofDevices("policies of capacity", func(d *resourcev1.Device) (had bool) {
		for name, c := range d.Capacity {
			had = cleared(&c.RequestPolicy) || had
			d.Capacity[name] = c
		}
		return had
	}),
	ofDevices("taints of devices", func(d *resourcev1.Device) bool { return clearedList(&d.Taints) }),
	ofDevices("nodes of single devices", func(d *resourcev1.Device) bool {
		had := d.NodeName != nil || d.NodeSelector != nil
		if had {
			d.NodeName, d.NodeSelector, d.AllNodes = nil, nil, new(true)
		}
		return had
	}),
	ofDevices("devices that bind to a node", func(d *resourcev1.Device) bool { return cleared(&d.BindsToNode) }),
	ofKindThere("slices of all nodes", func(s *resourcev1.ResourceSlice) bool {
		had := s.Spec.AllNodes != nil || s.Spec.NodeSelector != nil
		if had {
			s.Spec.Devices = nil
		}
		return had
	}),
	ofKindThere("incomplete pools", func(s *resourcev1.ResourceSlice) bool {
		had := s.Spec.Pool.ResourceSliceCount > 1
		s.Spec.Pool.ResourceSliceCount = 1
		return had
	}),
	{"obsolete slices", func(w *World) bool {
		return dropped(&w.Others, func(o runtime.Object) bool {
			s, is := o.(*resourcev1.ResourceSlice)
			return is && s.Spec.Pool.Generation == 0
		})
	}},
	ofRequests("alternatives", func(r *resourcev1.DeviceRequest) bool {
		had := len(r.FirstAvailable) > 0
		if had {
			f := r.FirstAvailable[0]
			r.FirstAvailable = nil
			r.Exactly = &resourcev1.ExactDeviceRequest{DeviceClassName: f.DeviceClassName, Selectors: f.Selectors, AllocationMode: f.AllocationMode, Count: f.Count}
		}
		return had
	}),
	ofRequests("admin access", func(r *resourcev1.DeviceRequest) bool { return r.Exactly != nil && cleared(&r.Exactly.AdminAccess) }),
	ofRequests("shares of capacity", func(r *resourcev1.DeviceRequest) bool { return r.Exactly != nil && cleared(&r.Exactly.Capacity) }),
	ofRequests("tolerations of devices' taints", func(r *resourcev1.DeviceRequest) bool {
		return r.Exactly != nil && clearedList(&r.Exactly.Tolerations)
	}),
	ofRequests("all devices", func(r *resourcev1.DeviceRequest) bool {
		had := r.Exactly != nil && r.Exactly.AllocationMode == resourcev1.DeviceAllocationModeAll
		if had {
			r.Exactly.AllocationMode, r.Exactly.Count = resourcev1.DeviceAllocationModeExactCount, 1
		}
		return had
	}),
	ofKindThere("constraints of claims", func(c *resourcev1.ResourceClaim) bool { return clearedList(&c.Spec.Devices.Constraints) }),
	ofKindThere("shares that claims have", func(c *resourcev1.ResourceClaim) (had bool) {
		if c.Status.Allocation == nil {
			return false
		}
		for i := range c.Status.Allocation.Devices.Results {
			r := &c.Status.Allocation.Devices.Results[i]
			had = had || len(r.ConsumedCapacity) > 0
			for name := range r.ConsumedCapacity {
				r.ConsumedCapacity[name] = resource.MustParse("0")
			}
		}
		return had
	}),
	ofKindThere("extended resources of device classes", func(c *resourcev1.DeviceClass) bool { return cleared(&c.Spec.ExtendedResourceName) }),
}

var traitsOfProfiles = []trait{
	{"weights", func(w *World) bool {
		had := len(w.Weights) > 0
		w.Weights = nil
		return had
	}},
	{"an order of filters", func(w *World) bool { return clearedList(&w.FilterOrder) }},
	{"plugins without scores", func(w *World) bool { return clearedList(&w.Unscored) }},
	{"plugins without filters", func(w *World) bool { return clearedList(&w.Unfiltered) }},
	argument("NodeResourcesFit"), argument("NodeResourcesBalancedAllocation"), argument("InterPodAffinity"), argument("NodeAffinity"), argument("PodTopologySpread"),
}
