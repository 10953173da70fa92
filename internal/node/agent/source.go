package agent

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
)

// The kubelet's annotations of where a pod is from and since when it is known. They are the node's
// to write: a pod whose source is not the API counts as static, and so as critical, which nobody
// may claim for a pod of his own.
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

// fromAPI is a pod of the API as the node has it. Only annotations differ, so that the rest is
// shared with the API's object, which nobody may change.
func fromAPI(pod *v1.Pod, seen string) *v1.Pod {
	own := *pod
	own.Annotations = make(map[string]string, len(pod.Annotations)+2)
	maps.Copy(own.Annotations, pod.Annotations)
	own.Annotations[annotationConfigSource], own.Annotations[annotationConfigSeen] = sourceAPI, seen
	return &own
}

func firstSeen(now time.Time) string { return now.Format(time.RFC3339Nano) }
