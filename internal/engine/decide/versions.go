// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/berth-k8s/berth/internal/engine/cluster"

// versions holds the versions of all inputs of a plan, except for nodes and pods.
type versions struct {
	namespaces, services, controllers, devices uint64
	images                                     uint64
	keys                                       int
	terms                                      int    // version of the terms that may match the pod
	learnt                                     uint64 // see plugins.Learner
}

// versionsFor returns the current versions, except for versions.terms, which the caller must set.
// The version of namespaces is included only if a term selects namespaces by labels.
func (ix *index) versionsFor(class *cluster.PodClass) versions {
	c := ix.c
	v := versions{
		services:    c.Services.Version,
		controllers: c.ReplicationControllers.Version + c.ReplicaSets.Version + c.StatefulSets.Version,
		devices:     c.DeviceClasses.Version, images: c.ImagesVersion, keys: ix.keys.version, learnt: ix.learntVersion(),
	}
	if class.SelectsNamespaces || ix.terms.selective > 0 {
		v.namespaces = c.Namespaces.Version
	}
	return v
}

// learntVersion returns the combined version of the state learnt by scorers.
func (ix *index) learntVersion() (sum uint64) {
	for _, l := range ix.learners {
		sum += l.Version(ix.c)
	}
	return sum
}
