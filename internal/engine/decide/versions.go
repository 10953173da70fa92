package decide

import "github.com/berth-k8s/berth/internal/engine/cluster"

// versions are those of everything that a plan is made from, except for nodes and pods.
type versions struct {
	namespaces, services, controllers, devices uint64
	images                                     uint64
	keys                                       int
	terms                                      int    // of the terms that may match the pod
	learnt                                     uint64 // see plugins.Learner
}

// versionsFor returns them as they are now. Labels of namespaces count only where a term selects by
// them.
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

// learntVersion is the version of what scorers have learnt.
func (ix *index) learntVersion() (sum uint64) {
	for _, l := range ix.learners {
		sum += l.Version(ix.c)
	}
	return sum
}
