package cri

import (
	"encoding/json"
	"maps"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// The kubelet's labels and annotations.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	annotationHash              = "io.kubernetes.container.hash"
	annotationRestartCount      = "io.kubernetes.container.restartCount"
	annotationMessagePath       = "io.kubernetes.container.terminationMessagePath"
	annotationMessagePolicy     = "io.kubernetes.container.terminationMessagePolicy"
	annotationPreStop           = "io.kubernetes.container.preStopHandler"
	annotationPorts             = "io.kubernetes.container.ports"
	annotationDeletionGrace     = "io.kubernetes.pod.deletionGracePeriod"
	annotationTerminationPeriod = "io.kubernetes.pod.terminationGracePeriod"
)

// annotationNode is on sandboxes: the node whose agent made them.
const annotationNode = "berth.dev/node"

// annotationResources is on containers: the resources that they were made with.
const annotationResources = "berth.dev/resources"

func podLabels(pod *v1.Pod) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, pod.Labels)
	labels[LabelPodName], labels[LabelPodNamespace], labels[LabelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	return labels
}

func containerLabels(pod *v1.Pod, c *v1.Container) map[string]string {
	return map[string]string{
		LabelPodName: pod.Name, LabelPodNamespace: pod.Namespace, LabelPodUID: string(pod.UID), LabelContainerName: c.Name,
	}
}

func containerAnnotations(pod *v1.Pod, c *v1.Container, attempt int) map[string]string {
	out := map[string]string{
		annotationHash:          lifecycle.Hash(c),
		annotationRestartCount:  strconv.Itoa(attempt),
		annotationMessagePath:   c.TerminationMessagePath,
		annotationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if text, err := json.Marshal(v1.ResourceRequirements{Requests: c.Resources.Requests, Limits: c.Resources.Limits}); err == nil {
		out[annotationResources] = string(text)
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		out[annotationDeletionGrace] = strconv.FormatInt(*grace, 10)
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		out[annotationTerminationPeriod] = strconv.FormatInt(*grace, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if text, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			out[annotationPreStop] = string(text)
		}
	}
	if len(c.Ports) > 0 {
		if text, err := json.Marshal(c.Ports); err == nil {
			out[annotationPorts] = string(text)
		}
	}
	return out
}
