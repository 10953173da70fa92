// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/integrations/grpcplugin"
)

// prices has the prices of a node per hour.
type prices struct {
	NodeGroups    map[string]float64 `json:"nodeGroups"`
	InstanceTypes map[string]float64 `json:"instanceTypes"`
}

// readPrices reads a file with prices; "" means none.
func readPrices(file string) (*prices, error) {
	p := &prices{}
	if file == "" {
		return p, nil
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.UnmarshalStrict(text, p)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the prices: %w", err)
	}
	return p, nil
}

// of returns the price of a node of a group. A node without a price is more expensive than any
// other.
func (p *prices) of(group string, node *v1.Node) float64 {
	if price, ok := p.NodeGroups[group]; ok {
		return price
	}
	if price, ok := p.InstanceTypes[node.Labels[v1.LabelInstanceTypeStable]]; ok {
		return price
	}
	return math.Inf(1)
}

// template returns the template node of an option.
func template(r *grpcplugin.BestOptionsRequest, group string) (*v1.Node, error) {
	encoded, ok := r.GetNodeBytesMap()[group]
	if !ok {
		encoded = r.GetNodeMap()[group]
	}
	if encoded == nil {
		return nil, errors.New("no template node")
	}
	node := &v1.Node{}
	if err := node.Unmarshal(encoded); err != nil {
		return nil, fmt.Errorf("decoding the template node: %w", err)
	}
	return node, nil
}

// podsOf adds the pods of an option to pods, by namespace and name.
func podsOf(o *grpcplugin.Option, pods map[string]*v1.Pod) error {
	encoded := o.GetPodBytes()
	if len(encoded) == 0 {
		encoded = o.GetPod()
	}
	for _, text := range encoded {
		pod := &v1.Pod{}
		if err := pod.Unmarshal(text); err != nil {
			return fmt.Errorf("decoding the pods of node group %s: %w", o.GetNodeGroupId(), err)
		}
		pods[pod.Namespace+"/"+pod.Name] = pod
	}
	return nil
}

// jobs writes pods as Jobs of equal pods, the most important first.
func jobs(pods map[string]*v1.Pod) (string, error) {
	keys := slices.SortedFunc(maps.Keys(pods), func(a, b string) int {
		return cmp.Or(cmp.Compare(ptr.Deref(pods[b].Spec.Priority, 0), ptr.Deref(pods[a].Spec.Priority, 0)), cmp.Compare(a, b))
	})
	var all []*batchv1.Job
	known := map[string]*batchv1.Job{} // by the encoded template and the namespace
	for _, key := range keys {
		pod := pods[key]
		spec := *pod.Spec.DeepCopy()
		spec.RestartPolicy = v1.RestartPolicyNever // a Job requires it
		of := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: spec}
		text, err := json.Marshal(of)
		if err != nil {
			return "", fmt.Errorf("encoding pod %s: %w", key, err)
		}
		same := pod.Namespace + string(text)
		if job := known[same]; job != nil {
			*job.Spec.Parallelism++
			continue
		}
		known[same] = &batchv1.Job{
			TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: fmt.Sprintf("expander-%d", len(all))},
			Spec:       batchv1.JobSpec{Parallelism: ptr.To[int32](1), Template: of},
		}
		all = append(all, known[same])
	}
	texts := make([]string, len(all))
	for i, job := range all {
		text, err := json.Marshal(job)
		if err != nil {
			return "", fmt.Errorf("encoding the pods: %w", err)
		}
		texts[i] = string(text)
	}
	return strings.Join(texts, separator), nil
}

// separator is between the documents of a question.
const separator = "\n---\n"

// manifest writes a node, with its labels, taints and size, and the workloads after it.
func manifest(node *v1.Node, workloads string) (string, error) {
	text, err := json.Marshal(&v1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "expander", Labels: node.Labels},
		Spec:       v1.NodeSpec{Taints: node.Spec.Taints},
		Status:     v1.NodeStatus{Capacity: node.Status.Capacity, Allocatable: node.Status.Allocatable, Conditions: node.Status.Conditions},
	})
	if err != nil {
		return "", fmt.Errorf("encoding the node: %w", err)
	}
	return string(text) + separator + workloads, nil
}
