// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// everyoneUnless selects every class, or no class if the given function reports that the event can
// help no pod. It saves the calls of the hint for each class if the event alone determines the
// result.
func everyoneUnless(nobody func(e *queue.Event) bool) *queue.Narrowing {
	everybody := []queue.Topic{{Kind: queue.AllPods}}
	return &queue.Narrowing{
		Topics: func(*queue.Item) (topics []queue.Topic, all bool) { return everybody, false },
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			if nobody(e) {
				return nil, false
			}
			return everybody, false
		},
	}
}

// byClaims selects the pods that use the event's claim, the claim bound to the event's volume, or a
// claim that names the volume. The two claims may differ after recreation of the volume.
func (setting Setting) byClaims() *queue.Narrowing {
	return &queue.Narrowing{
		Topics: func(item *queue.Item) (topics []queue.Topic, all bool) {
			for _, name := range claimNames(item.Pod) {
				topics = append(topics, queue.Topic{Kind: queue.OfClaim, Key: item.Pod.Namespace, Value: name})
			}
			// Volumes are also indexed under their own name: at the time of an event, their
			// claimRef may name another claim.
			for _, claim := range setting.claimsOf(item) { // a claim bound later wakes the pod itself
				if claim.Spec.VolumeName != "" {
					topics = append(topics, queue.Topic{Kind: queue.OfVolume, Value: claim.Spec.VolumeName})
				}
			}
			return topics, false
		},
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			for _, object := range [...]any{e.Old, e.New} {
				switch o := object.(type) {
				case *v1.PersistentVolumeClaim:
					topics = append(topics, queue.Topic{Kind: queue.OfClaim, Key: o.Namespace, Value: o.Name})
				case *v1.PersistentVolume:
					if object != e.New && e.New != nil {
						continue // the current state counts
					}
					// A free volume may serve any claim of its class.
					if o.Spec.ClaimRef == nil {
						return nil, true
					}
					topics = append(topics, queue.Topic{Kind: queue.OfVolume, Value: o.Name},
						queue.Topic{Kind: queue.OfClaim, Key: o.Spec.ClaimRef.Namespace, Value: o.Spec.ClaimRef.Name})
				}
			}
			return topics, len(topics) == 0
		},
	}
}

// keptForOther reports whether a volume is reserved for another claim.
func keptForOther(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := volume.Spec.ClaimRef
	return ref != nil && (ref.Namespace != claim.Namespace || ref.Name != claim.Name)
}

// byDeviceClaims selects the pods that use the event's claim. It selects all pods if the claim
// releases devices, which any pod may need, or was deleted and served extended resources: the
// scheduler then makes a new claim.
func byDeviceClaims() *queue.Narrowing {
	return &queue.Narrowing{
		Topics: func(item *queue.Item) (topics []queue.Topic, all bool) {
			for i := range item.Pod.Spec.ResourceClaims {
				name, _, err := resourceclaim.Name(item.Pod, &item.Pod.Spec.ResourceClaims[i])
				// An error means that the claim of a template does not exist yet. A nil name means
				// that the pod needs no claim.
				if err == nil && name != nil {
					topics = append(topics, queue.Topic{Kind: queue.OfDeviceClaim, Key: item.Pod.Namespace, Value: *name})
				}
			}
			return append(topics, queue.Topic{Kind: queue.AllPods}), false
		},
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			was, _ := e.Old.(*resourcev1.ResourceClaim)
			is, _ := e.New.(*resourcev1.ResourceClaim)
			switch {
			case givesBack(was, is), is == nil && was != nil && was.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true":
				return []queue.Topic{{Kind: queue.AllPods}}, false
			case is == nil:
				return nil, false
			}

			return []queue.Topic{{Kind: queue.OfDeviceClaim, Key: is.Namespace, Value: is.Name}}, false
		},
	}
}

// givesBack reports whether a claim has lost its devices. A new claim with the same name counts as
// a loss.
func givesBack(was, is *resourcev1.ResourceClaim) bool {
	return was != nil && was.Status.Allocation != nil && (is == nil || is.Status.Allocation == nil || is.UID != was.UID)
}

// namespaceMatters is the hint for events of namespaces. They matter to required terms that select
// namespaces by label: terms of the pending pod, and terms of other pods that select its namespace.
// Terms of other pods are not looked up: any change of the pod's own namespace wakes the pod.
func namespaceMatters(item *queue.Item, e *queue.Event) bool {
	name, was, is, known := namespaceLabels(e)
	// The terms of placed pods may select the pending pod's namespace by label.
	if !known || name == item.Class.Namespace {
		return true
	}
	for _, terms := range [2][]cluster.Term{item.Class.RequiredAffinity, item.Class.RequiredAntiAffinity} {
		for i := range terms {
			if s := terms[i].NamespaceSelector; (was != nil && s.Matches(was)) != (is != nil && s.Matches(is)) {
				return true
			}
		}
	}
	return item.Class.TermError != nil
}

// namespaceLabels returns the labels of the event's namespace before and after the event; nil for a
// state without the namespace.
func namespaceLabels(e *queue.Event) (name string, was, is labels.Set, known bool) {
	if n, ok := e.Old.(*v1.Namespace); ok {
		name, was, known = n.Name, nonNil(n.Labels), true
	}
	if n, ok := e.New.(*v1.Namespace); ok {
		name, is, known = n.Name, nonNil(n.Labels), true
	}
	return name, was, is, known
}

// nonNil distinguishes a namespace without labels from a missing one.
func nonNil(set labels.Set) labels.Set {
	if set == nil {
		return labels.Set{}
	}
	return set
}

// byNamespaces selects the classes in the event's namespace, and all classes that select namespaces
// by label.
func byNamespaces() *queue.Narrowing {
	return &queue.Narrowing{
		Topics: func(item *queue.Item) (topics []queue.Topic, all bool) {
			all = item.Class.TermError != nil
			for _, terms := range [2][]cluster.Term{item.Class.RequiredAffinity, item.Class.RequiredAntiAffinity} {
				for i := range terms {
					_, selects := terms[i].NamespaceSelector.Requirements()
					all = all || selects
				}
			}
			return []queue.Topic{{Kind: queue.InNamespace, Value: item.Class.Namespace}}, all
		},
		EventTopics: func(e *queue.Event) (topics []queue.Topic, all bool) {
			name, _, _, known := namespaceLabels(e)
			return []queue.Topic{{Kind: queue.InNamespace, Value: name}}, !known
		},
	}
}

// volumeKeys indexes the labels by which volumes, and the topologies for provisioning them, select
// nodes. The index is rebuilt on demand after a change of its sources (versions).
type volumeKeys struct {
	c        *cluster.Cluster
	versions [3]uint64
	known    map[string]bool
	migrated bool // CSI migration moves some volumes to drivers with different node labels
}

// hasKey reports whether volumes may select nodes by the label.
func (k *volumeKeys) hasKey(key string) bool {
	now := [3]uint64{k.c.Volumes.Version, k.c.StorageClasses.Version, k.c.CSICapacities.Version}
	if k.known == nil || k.versions != now {
		k.versions, k.known, k.migrated = now, map[string]bool{}, false
		k.readVolumes()
	}
	return k.known[key] || k.migrated && strings.HasPrefix(key, "topology.") // the prefix of the labels of all such drivers
}

// readVolumes collects the keys from the node affinity of volumes, the allowed topologies of
// storage classes and the topologies of CSI capacities.
func (k *volumeKeys) readVolumes() {
	// Bound volumes are included, because they restrict the nodes as well.
	for volume := range k.c.Volumes.Each {
		// The labels of migratable volumes are translated on nodes with migration enabled, so the
		// volume's keys do not suffice.
		k.migrated = k.migrated || translator.IsPVMigratable(volume)
		if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
			continue
		}
		for i := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
			for _, w := range wantedBy(&volume.Spec.NodeAffinity.Required.NodeSelectorTerms[i]) {
				k.known[w.key] = true
			}
		}
	}

	for class := range k.c.StorageClasses.Each {
		for _, term := range class.AllowedTopologies {
			for _, e := range term.MatchLabelExpressions {
				k.known[e.Key] = true
			}
		}
	}

	for capacity := range k.c.CSICapacities.Each {
		if topology := capacity.NodeTopology; topology != nil {
			for key := range topology.MatchLabels {
				k.known[key] = true
			}
			for i := range topology.MatchExpressions {
				k.known[topology.MatchExpressions[i].Key] = true
			}
		}
	}
}

// byVolumeKeys selects all pods if the event's node is new, or if a label by which volumes select
// nodes has changed. has is volumeKeys.hasKey or a substitute.
func byVolumeKeys(has func(key string) bool) *queue.Narrowing {
	return everyoneUnless(func(e *queue.Event) bool {
		return e.Node == nil || e.NodeBefore != nil && !slices.ContainsFunc(changedKeys(e), has)
	})
}

// noMoreStorage reports whether a capacity is no larger than before, and in the same place.
func noMoreStorage(e *queue.Event) bool {
	was, isOld := e.Old.(*storagev1.CSIStorageCapacity)
	is, isNew := e.New.(*storagev1.CSIStorageCapacity)
	return !isNew || isOld && !moreStorage(was, is)
}
