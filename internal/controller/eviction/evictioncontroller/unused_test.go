// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// TestUnusedFieldsDoNotMatter verifies that what the core needs of nodes does not depend on the
// fields that are not decoded, and that these fields are not decoded.
func TestUnusedFieldsDoNotMatter(t *testing.T) {
	now := metav1.NewTime(time.Unix(1_800_000_000, 0))
	node := v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "a", UID: "u", ResourceVersion: "7", Annotations: map[string]string{eviction.NoteAnnotation: "{}"}, Labels: map[string]string{"k": "v"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", Time: &now, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`)}},
		},
		Spec: v1.NodeSpec{Taints: []v1.Taint{
			{Key: "k", Effect: v1.TaintEffectNoExecute}, {Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule, TimeAdded: &now},
		}},
		Status: v1.NodeStatus{Phase: v1.NodeRunning, Conditions: []v1.NodeCondition{{Type: v1.NodeReady}}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), v1.SchemeGroupVersion)
		if err := encoder.Encode(&v1.NodeList{Items: []v1.Node{node}}, w); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	list, err := nodesOf(client.CoreV1().RESTClient()).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}

	got, want := list.(*v1.NodeList).Items[0], eviction.NodeOf(&node)
	if want.Witness.IsZero() || want.Turned.IsZero() || want.Note == "" {
		t.Fatalf("the node is no example: %+v", want)
	}
	if !reflect.DeepEqual(eviction.NodeOf(&got), want) {
		t.Errorf("node %+v, want %+v", eviction.NodeOf(&got), want)
	}
	if got.Labels != nil || !reflect.DeepEqual(got.Status, v1.NodeStatus{}) {
		t.Errorf("unused fields are decoded: %+v", got)
	}
}
