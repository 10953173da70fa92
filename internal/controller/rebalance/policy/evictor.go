// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"slices"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// evictorName is the plugin with the arguments that select evictable pods. It is configured like
// any other plugin, and its arguments apply even if it is not enabled.
const evictorName = "DefaultEvictor"

// highestThreshold is the maximum priority threshold: system pods have at least this priority.
// 2,000,000,000 is the value of system-cluster-critical. The descheduler also refuses higher
// values.
const highestThreshold = 2000000000

// evictorArgs are the arguments of DefaultEvictor.
//
// Pointer fields distinguish absence from the zero value. Descheduler fields not listed here are
// refused as unknown.
type evictorArgs struct {
	// NodeSelector is read as a string, as in the descheduler; the label selectors are objects.
	NodeSelector           string                `json:"nodeSelector"`
	LabelSelector          *metav1.LabelSelector `json:"labelSelector"`
	NamespaceLabelSelector *metav1.LabelSelector `json:"namespaceLabelSelector"`
	// PriorityThreshold has a value or the name of a priority class, not both.
	PriorityThreshold *struct {
		Value *int32 `json:"value"`
		Name  string `json:"name"`
	} `json:"priorityThreshold"`
	// NodeFit makes NodeSelector binding. In the descheduler it also requires a node with room;
	// here that is superfluous, because every placement is proved.
	NodeFit     bool             `json:"nodeFit"`
	MinReplicas uint             `json:"minReplicas"`
	MinPodAge   *metav1.Duration `json:"minPodAge"`
	// NoEvictionPolicy determines whether the annotation prefer-no-eviction is binding: Preferred,
	// the default, or Mandatory.
	NoEvictionPolicy string `json:"noEvictionPolicy"`
	// PodProtections changes the active protections; Config lists the storage classes covered by
	// PodsWithPVC.
	PodProtections struct {
		DefaultDisabled []string `json:"defaultDisabled"`
		ExtraEnabled    []string `json:"extraEnabled"`
		Config          *struct {
			PodsWithPVC *struct {
				ProtectedStorageClasses []struct {
					Name string `json:"name"`
				} `json:"protectedStorageClasses"`
			} `json:"PodsWithPVC"`
		} `json:"config"`
	} `json:"podProtections"`

	// These fields are deprecated, and must not be used together with podProtections. nil and false
	// have the same meaning.
	EvictLocalStoragePods   *bool `json:"evictLocalStoragePods"`
	EvictDaemonSetPods      *bool `json:"evictDaemonSetPods"`
	EvictSystemCriticalPods *bool `json:"evictSystemCriticalPods"`
	IgnorePvcPods           *bool `json:"ignorePvcPods"`
	EvictFailedBarePods     *bool `json:"evictFailedBarePods"`
	IgnorePodsWithoutPDB    *bool `json:"ignorePodsWithoutPDB"`
}

// readEvictor reads the arguments of DefaultEvictor; nil means its defaults. Faults are recorded in
// r.err. All goals of the profile share the evictor.
func (r *reader) readEvictor(n *yaml.Node) *rebalance.Evictor {
	e := rebalance.NewEvictor()
	if n == nil {
		return e
	}

	var args evictorArgs
	r.decodeStrictly(n, evictorName, &args)
	if args.NodeSelector != "" {
		selector, err := labels.Parse(args.NodeSelector)
		if err != nil {
			r.setError(n, "%s: nodeSelector: %v", evictorName, err)
		}
		e.Targets = selector
	}

	e.NodeFit = args.NodeFit
	e.Pods, e.Namespaces = r.readSelector(n, args.LabelSelector), r.readSelector(n, args.NamespaceLabelSelector)
	e.MinReplicas = int(min(args.MinReplicas, math.MaxInt32))
	if args.MinPodAge != nil {
		e.MinPodAge = args.MinPodAge.Duration
	}

	switch args.NoEvictionPolicy {
	case "", "Preferred":
	case "Mandatory":
		e.Mandatory = true
	default:
		r.setError(n, "%s: noEvictionPolicy: %q: must be Preferred or Mandatory", evictorName, args.NoEvictionPolicy)
	}

	r.readProtections(n, e, &args)
	r.readThreshold(n, e, &args)
	return e
}

// readProtections reads the active protections from the lists in podProtections, or from the
// deprecated fields. A policy must not use both, as in the descheduler.
func (r *reader) readProtections(n *yaml.Node, e *rebalance.Evictor, args *evictorArgs) {
	// A deprecated field beginning with evict disables a protection that is active by default; a
	// field beginning with ignore enables a protection.
	is := func(b *bool) bool { return b != nil && *b }
	old := []*bool{args.EvictLocalStoragePods, args.EvictDaemonSetPods, args.EvictSystemCriticalPods,
		args.IgnorePvcPods, args.EvictFailedBarePods, args.IgnorePodsWithoutPDB}
	p := &args.PodProtections
	e.LocalStorage, e.DaemonSets = !is(args.EvictLocalStoragePods), !is(args.EvictDaemonSetPods)
	e.Critical, e.FailedBare = !is(args.EvictSystemCriticalPods), !is(args.EvictFailedBarePods)
	e.Claims, e.WithoutBudget = is(args.IgnorePvcPods), is(args.IgnorePodsWithoutPDB)
	if len(p.DefaultDisabled)+len(p.ExtraEnabled) > 0 && slices.ContainsFunc(old, is) {
		r.setError(n, "%s: podProtections: cannot be used with evictLocalStoragePods and the other deprecated fields", evictorName)
		return
	}

	// Names of protections are the descheduler's, so that policies work unchanged.
	byDefault := map[string]*bool{
		"PodsWithLocalStorage": &e.LocalStorage, "DaemonSetPods": &e.DaemonSets,
		"SystemCriticalPods": &e.Critical, "FailedBarePods": &e.FailedBare,
	}
	for _, name := range p.DefaultDisabled {
		if byDefault[name] == nil {
			r.setError(n, "%s: podProtections.defaultDisabled: %q: must be PodsWithLocalStorage, DaemonSetPods, "+
				"SystemCriticalPods or FailedBarePods", evictorName, name)
			continue
		}
		*byDefault[name] = false
	}

	extra := map[string]*bool{"PodsWithPVC": &e.Claims, "PodsWithoutPDB": &e.WithoutBudget, "PodsWithResourceClaims": &e.DeviceClaims}
	for _, name := range p.ExtraEnabled {
		if extra[name] == nil {
			r.setError(n, "%s: podProtections.extraEnabled: %q: must be PodsWithPVC, PodsWithoutPDB "+
				"or PodsWithResourceClaims", evictorName, name)
			continue
		}
		*extra[name] = true
	}

	if p.Config != nil && p.Config.PodsWithPVC != nil {
		for _, class := range p.Config.PodsWithPVC.ProtectedStorageClasses {
			e.StorageClasses = append(e.StorageClasses, class.Name)
		}
	}
}

// readThreshold reads the lowest protected priority, as a number or as the name of a priority
// class, which is looked up in the cluster.
func (r *reader) readThreshold(n *yaml.Node, e *rebalance.Evictor, args *evictorArgs) {
	switch t := args.PriorityThreshold; {
	case t == nil:
	case t.Value != nil && t.Name != "":
		r.setError(n, "%s: priorityThreshold: must have a name or a value, not both", evictorName)
	case t.Name != "":
		value, known := int32(0), false
		if r.priorities != nil {
			value, known = r.priorities(t.Name)
		}
		if !known {
			r.setError(n, "%s: priorityThreshold: there is no priority class %q", evictorName, t.Name)
		}
		// An unknown class is a fault; the value 0 is never used then.
		e.Priority, e.PriorityClass = &value, t.Name
	case t.Value != nil:
		e.Priority = t.Value
	}

	if e.Priority != nil && *e.Priority > highestThreshold {
		r.setError(n, "%s: priorityThreshold: %d: must not be above %d", evictorName, *e.Priority, highestThreshold)
	}
	// The threshold is part of the protection of critical pods: see protectionOf in package
	// rebalance.
	if e.Priority != nil && !e.Critical {
		r.addNote(n, "%s: priorityThreshold has no effect while critical pods are not protected, as in the descheduler", evictorName)
	}
}
