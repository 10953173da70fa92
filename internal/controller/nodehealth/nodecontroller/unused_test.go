// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodecontroller

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// TestUnusedFieldsDoNotMatter verifies that what the core needs of nodes and Leases does not depend
// on the fields that are not decoded, and that these fields are not decoded.
func TestUnusedFieldsDoNotMatter(t *testing.T) {
	now := metav1.NewTime(time.Unix(1_800_000_000, 0))
	meta := metav1.ObjectMeta{
		Name: "a", UID: "u", ResourceVersion: "7", CreationTimestamp: now, Annotations: map[string]string{"k": "v"}, Finalizers: []string{"f"},
		Labels:          map[string]string{v1.LabelOSStable: "linux", v1.LabelTopologyZone: "z", "node.kubernetes.io/exclude-disruption": ""},
		OwnerReferences: []metav1.OwnerReference{{Name: "o"}}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
	}
	room := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
	node := v1.Node{
		ObjectMeta: meta, Spec: v1.NodeSpec{Unschedulable: true, Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute, TimeAdded: &now}}},
		Status: v1.NodeStatus{
			Capacity: room, Allocatable: room, Phase: v1.NodeRunning, Images: []v1.ContainerImage{{Names: []string{"i"}}},
			Addresses: []v1.NodeAddress{{Address: "1.2.3.4"}}, NodeInfo: v1.NodeSystemInfo{MachineID: "m"}, DeclaredFeatures: []string{"f"},
			VolumesInUse: []v1.UniqueVolumeName{"v"}, VolumesAttached: []v1.AttachedVolume{{Name: "v"}}, Config: &v1.NodeConfigStatus{Error: "e"},
			RuntimeHandlers: []v1.NodeRuntimeHandler{{Name: "h"}}, Features: &v1.NodeFeatures{},
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: 10250}},
			Conditions: []v1.NodeCondition{
				{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "r", Message: "m", LastHeartbeatTime: now, LastTransitionTime: now},
			},
		},
	}
	holder, renewed := "a", metav1.NewMicroTime(now.Time)
	lease := coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, AcquireTime: &renewed, RenewTime: &renewed}}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list runtime.Object = &v1.NodeList{Items: []v1.Node{node}}
		version := v1.SchemeGroupVersion
		if r.URL.Path != "/api/v1/nodes" {
			list, version = &coordinationv1.LeaseList{Items: []coordinationv1.Lease{lease}}, coordinationv1.SchemeGroupVersion
		}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), schema.GroupVersion(version))
		if err := encoder.Encode(list, w); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	read := func(source feed.Source) runtime.Object {
		list, err := source.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}

	got := read(nodesOf(client)).(*v1.NodeList).Items[0]
	if want := nodehealth.NodeOf(&node); !reflect.DeepEqual(nodehealth.NodeOf(&got), want) {
		t.Errorf("node %+v, want %+v", nodehealth.NodeOf(&got), want)
	}
	got.Status.Phase, got.Status.Conditions = "", nil
	if got.Annotations != nil || got.ManagedFields != nil || !reflect.DeepEqual(got.Status, v1.NodeStatus{}) {
		t.Errorf("unused fields are decoded: %+v", got)
	}
	read2 := read(leasesOf(client)).(*coordinationv1.LeaseList).Items[0]
	if want := leaseOf(&lease); !reflect.DeepEqual(leaseOf(&read2), want) {
		t.Errorf("lease %+v, want %+v", leaseOf(&read2), want)
	}
	if read2.ManagedFields != nil || read2.Labels != nil || read2.Spec.HolderIdentity != nil {
		t.Errorf("unused fields are decoded: %+v", read2)
	}
}
