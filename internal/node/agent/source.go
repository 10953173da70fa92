package agent

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
)

// The kubelet's annotations for a pod's source and since when it is known. Only the node may write
// them: a pod whose source is not the API counts as static, and so as critical, which no user may
// claim for a pod.
const (
	annotationConfigHash   = "kubernetes.io/config.hash"
	annotationConfigSource = "kubernetes.io/config.source"
	annotationConfigSeen   = "kubernetes.io/config.seen"
)

const (
	sourceAPI  = "api"
	sourceFile = "file"
)

func isMirror(pod *v1.Pod) bool {
	_, is := pod.Annotations[v1.MirrorPodAnnotationKey]
	return is
}

// fromAPI returns an API pod as the node has it. Only annotations differ; everything else is shared
// with the API's object, which must not be changed.
func fromAPI(pod *v1.Pod, seen string) *v1.Pod {
	own := *pod
	own.Annotations = make(map[string]string, len(pod.Annotations)+2)
	maps.Copy(own.Annotations, pod.Annotations)
	own.Annotations[annotationConfigSource], own.Annotations[annotationConfigSeen] = sourceAPI, seen
	return &own
}

func firstSeen(now time.Time) string { return now.Format(time.RFC3339Nano) }
