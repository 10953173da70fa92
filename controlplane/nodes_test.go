// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"crypto/tls"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	kubelet "k8s.io/kubernetes/pkg/kubelet/certificate/bootstrap"

	"github.com/berth-k8s/berth/controlplane"
)

// TestANodeIsOneNode verifies that a machine with the bootstrap kubeconfig becomes one node, and
// that its credentials are limited to that node: a thief can perform the permitted actions below,
// but not the refused ones.
func TestANodeIsOneNode(t *testing.T) {
	dir := t.TempDir()
	cluster := controlplane.Start(t, func(o *controlplane.Options) { o.DataDir, o.NodeBootstrap = dir, true })
	admin, ctx := clientFor(t, cluster.Config), t.Context()
	bootstrap := filepath.Join(dir, "node-bootstrap.kubeconfig")
	mine := t.TempDir()
	// As the kubelet does.
	if err := kubelet.LoadClientCert(ctx, filepath.Join(mine, "kubeconfig"), bootstrap, mine, "mine"); err != nil {
		t.Fatal(err)
	}
	own, err := clientcmd.BuildConfigFromFlags("", filepath.Join(mine, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if life := time.Until(pair.Leaf.NotAfter); pair.Leaf.Subject.CommonName != "system:node:mine" || life > 366*24*time.Hour || life < 24*time.Hour {
		t.Errorf("the certificate is %v's, for %v", pair.Leaf.Subject, life)
	}
	secret := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for _, name := range []string{"ours", "theirs"} {
		if _, err := admin.CoreV1().Secrets("default").Create(ctx, secret(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for node, uses := range map[string]string{"mine": "ours", "other": "theirs"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node}, Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i", EnvFrom: []corev1.EnvFromSource{{
				SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: uses}}}}}},
		}}
		if _, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node := clientFor(t, own)
	deeds := []struct {
		name string
		may  bool
		do   func() error
	}{
		{"register itself", true, func() error {
			_, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
			return err
		}},
		{"register another", false, func() error {
			_, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "third"}}, metav1.CreateOptions{})
			return err
		}},
		{"change another's status", false, func() error {
			_, err := node.CoreV1().Nodes().Patch(ctx, "other", types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status")
			return err
		}},
		{"give itself a role", false, func() error {
			_, err := node.CoreV1().Nodes().Patch(ctx, "mine", types.MergePatchType, []byte(`{"metadata":{"labels":{"node-restriction.kubernetes.io/a":"b"}}}`), metav1.PatchOptions{})
			return err
		}},
		{"read a secret of its own pod", true, func() error { return get(node, "ours") }},
		{"read a secret of another's pod", false, func() error { return get(node, "theirs") }},
		{"list secrets", false, func() error {
			_, err := node.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
			return err
		}},
		{"evict a pod of another", false, func() error {
			return node.CoreV1().Pods("default").EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "on-other"}})
		}},
		{"change the status of a pod of another", false, func() error {
			_, err := node.CoreV1().Pods("default").Patch(ctx, "on-other", types.MergePatchType, []byte(`{"status":{"message":"x"}}`), metav1.PatchOptions{}, "status")
			return err
		}},
		{"change the status of its own pod", true, func() error {
			_, err := node.CoreV1().Pods("default").Patch(ctx, "on-mine", types.MergePatchType, []byte(`{"status":{"message":"x"}}`), metav1.PatchOptions{}, "status")
			return err
		}},
		{"make a pod that the scheduler places", false, func() error {
			_, err := node.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "new"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
			return err
		}},
	}
	for _, deed := range deeds {
		err := deed.do()

		// The authorizer and admission learn of a new pod and the objects it references after a
		// short delay.
		for end := time.Now().Add(time.Minute); early(err, deed.may) && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			err = deed.do()
		}
		if deed.may && err != nil || !deed.may && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", deed.name, err)
		}
	}

	// The bootstrap token can request node certificates, and nothing else.
	config, err := clientcmd.BuildConfigFromFlags("", bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	token := clientFor(t, config)
	if _, err := token.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the bootstrap token lists nodes: %v", err)
	}
	if err := get(token, "ours"); !apierrors.IsForbidden(err) {
		t.Errorf("the bootstrap token reads a secret: %v", err)
	}
}

// early reports whether the error is consistent with a server that has not yet observed the pod.
func early(err error, may bool) bool {
	return apierrors.IsNotFound(err) || may && apierrors.IsForbidden(err)
}

func get(client kubernetes.Interface, secret string) error {
	_, err := client.CoreV1().Secrets("default").Get(context.Background(), secret, metav1.GetOptions{})
	return err
}
