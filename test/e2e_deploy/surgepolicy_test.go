// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// TestSurgePermissionsChangeScalesOnly verifies that the admission policy restricts the permission
// to patch Deployments, ReplicaSets and pods to the fields that surges write: with the controller's
// token, no image, ServiceAccount or owner can be changed in any namespace.
func TestSurgePermissionsChangeScalesOnly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.install("rebalance-surge")

	labels := map[string]string{"app": "shop"}
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "example.com/shop"}}},
	}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	create := metav1.CreateOptions{}
	_, err := c.api.AppsV1().Deployments("kube-system").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Selector: selector, Template: template},
	}, create)
	_, err2 := c.api.AppsV1().ReplicaSets("kube-system").Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "example.com/v1", Kind: "CloneSet", Name: "owned", UID: "1", Controller: ptr.To(true),
		}}},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0), Selector: selector, Template: template},
	}, create)
	_, err3 := c.api.CoreV1().Pods("kube-system").Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: template.Spec}, create)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}

	client := kubernetes.NewForConfigOrDie(c.as(c.token("berth-controller")))
	patch := func(kind, patch string) (err error) {
		ctx, text, options := context.Background(), []byte(patch), metav1.PatchOptions{}
		switch kind {
		case "deployment":
			_, err = client.AppsV1().Deployments("kube-system").Patch(ctx, "shop", types.MergePatchType, text, options)
		case "replicaset":
			_, err = client.AppsV1().ReplicaSets("kube-system").Patch(ctx, "owned", types.MergePatchType, text, options)
		case "pod":
			_, err = client.CoreV1().Pods("kube-system").Patch(ctx, "shop", types.StrategicMergePatchType, text, options)
		}
		return err
	}
	denied := func(kind, text string) error {
		err := patch(kind, text)
		if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'berth-rebalance-surge'") {
			return fmt.Errorf("%s %s: expected a denial by the policy, got error: %v", kind, text, err)
		}
		return nil
	}

	// The policy takes effect a moment after its creation. Each attempt differs from the previous
	// one, because a patch that changes nothing is allowed.
	attempt := 0
	eventually(t, func() error {
		attempt++
		return denied("deployment", fmt.Sprintf(`{"metadata":{"annotations":{"attempt":"%d"}}}`, attempt))
	})

	// Each step starts from the state after the previous step.
	owner := `"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"x","uid":"1"}]`
	for i, step := range []struct {
		kind, patch string
		allowed     bool
	}{
		{"deployment", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example.com/evil"}]}}}}`, false},
		{"deployment", `{"spec":{"template":{"spec":{"serviceAccountName":"cluster-admin"}}}}`, false},
		{"deployment", `{"spec":{"paused":true}}`, false},
		{"deployment", `{"metadata":{"labels":{"app":"other"}}}`, false},
		{"deployment", `{"metadata":{"annotations":{"example.com/a":"b"}}}`, false},
		{"deployment", `{"metadata":{"finalizers":["example.com/forever"]}}`, false},
		{"deployment", `{"metadata":{` + owner + `}}`, false},
		{"deployment", `{"spec":{"replicas":0}}`, false},
		{"deployment", `{"spec":{"replicas":3}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"2_x_1"}},"spec":{"replicas":9}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"2_x_1"}},"spec":{"replicas":1}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"2_x_1_12"}},"spec":{"replicas":15}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"2_x_1_3"}},"spec":{"replicas":5}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"2_x_1_3"}},"spec":{"replicas":6}}`, true},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":null}},"spec":{"replicas":1}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":null}},"spec":{"replicas":2}}`, true},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"2_x_1"}}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"2_x_1"}},"spec":{"replicas":3}}`, true},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"3_y_1"}},"spec":{"replicas":4}}`, false},
		{"deployment", `{"spec":{"replicas":2}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":null}},"spec":{"replicas":1}}`, false},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":null}},"spec":{"replicas":2}}`, true},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":"2_x_2"}},"spec":{"replicas":3}}`, true},
		{"deployment", `{"metadata":{"labels":{"berth.dev/surge":null}}}`, true}, // if the Deployment was scaled in the meantime
		{"replicaset", `{"metadata":{"labels":{"berth.dev/surge":"0_x_1"}},"spec":{"replicas":1}}`, false},
		{"replicaset", `{"metadata":{"labels":{"berth.dev/surge":"0_x_1"}}}`, true}, // if the ReplicaSet is scaled through its owner
		{"replicaset", `{"metadata":{"labels":{"berth.dev/surge":null}}}`, true},
		{"replicaset", `{"spec":{"template":{"spec":{"hostNetwork":true}}}}`, false},
		{"pod", `{"metadata":{"labels":{"app":"shop"}}}`, false},
		{"pod", `{"spec":{"containers":[{"name":"main","image":"example.com/evil"}]}}`, false},
		{"pod", `{"spec":{"activeDeadlineSeconds":1}}`, false},
		{"pod", `{"metadata":{` + owner + `}}`, false},
		{"pod", `{"metadata":{"annotations":{"example.com/a":"b"}}}`, false},
		{"pod", `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"5","berth.dev/deletion-cost-before":""}}}`, true},
		{"pod", `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":null,"berth.dev/deletion-cost-before":null}}}`, true},
	} {
		try := func() error { return patch(step.kind, step.patch) }
		if !step.allowed {
			try = func() error { return denied(step.kind, step.patch) }
		}
		if err := try(); err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
}
