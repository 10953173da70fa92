// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"
)

// TestReplicasAreBounded verifies the limit for every kind and for the scale subresource. Other
// changes to workloads already stored above the limit remain possible.
func TestReplicasAreBounded(t *testing.T) {
	workloads := map[string]func(n int32) runtime.Object{
		"deployments":  func(n int32) runtime.Object { return &apps.Deployment{Spec: apps.DeploymentSpec{Replicas: n}} },
		"replicasets":  func(n int32) runtime.Object { return &apps.ReplicaSet{Spec: apps.ReplicaSetSpec{Replicas: n}} },
		"statefulsets": func(n int32) runtime.Object { return &apps.StatefulSet{Spec: apps.StatefulSetSpec{Replicas: n}} },
		"replicationcontrollers": func(n int32) runtime.Object {
			return &core.ReplicationController{Spec: core.ReplicationControllerSpec{Replicas: &n}}
		},
		"jobs": func(n int32) runtime.Object { return &batch.Job{Spec: batch.JobSpec{Parallelism: &n}} },
		"cronjobs": func(n int32) runtime.Object {
			return &batch.CronJob{Spec: batch.CronJobSpec{JobTemplate: batch.JobTemplateSpec{Spec: batch.JobSpec{Parallelism: &n}}}}
		},
	}
	ask := func(now, old runtime.Object, subresource string) error {
		operation := apiserver.Update
		if old == nil {
			operation = apiserver.Create
		}
		a := apiserver.NewAttributesRecord(now, old, schema.GroupVersionKind{}, "t", "x", schema.GroupVersionResource{}, subresource, operation, nil, false, nil)
		return NewReplicas().(*replicas).Validate(context.Background(), a, nil)
	}
	for name, of := range workloads {
		for _, c := range []struct {
			now, old runtime.Object
			refused  bool
		}{
			{of(mostReplicas), nil, false}, {of(mostReplicas + 1), nil, true}, {of(2_000_000_000), of(1), true},
			{of(2_000_000_000), of(2_000_000_000), false}, {of(1_000_000), of(2_000_000_000), false},
		} {
			if err := ask(c.now, c.old, ""); (err != nil) != c.refused {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	scale := func(n int32) runtime.Object { return &autoscaling.Scale{Spec: autoscaling.ScaleSpec{Replicas: n}} }
	if ask(scale(2_000_000_000), scale(1), "scale") == nil || ask(scale(5), scale(1), "scale") != nil {
		t.Error("by the scale subresource: the limit does not hold, or a usual number is refused")
	}
	if err := ask(&apps.Deployment{Spec: apps.DeploymentSpec{Replicas: 2_000_000_000}}, nil, "status"); err != nil {
		t.Errorf("a status is refused: %v", err)
	}
}

// TestABootstrapTokenIsForNewNodes verifies that a bootstrap token cannot assume an existing node's
// identity.
func TestABootstrapTokenIsForNewNodes(t *testing.T) {
	plugin := NewBootstrap().(*bootstraps)
	if plugin.ValidateInitialization() == nil {
		t.Error("a plugin without client is taken for initialised")
	}
	plugin.SetExternalKubeClientSet(fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}}))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(common string, groups ...string) error {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: common, Organization: []string{"system:nodes"}}}, key)
		if err != nil {
			t.Fatal(err)
		}
		csr := &certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})}}
		return plugin.Validate(context.Background(), apiserver.NewAttributesRecord(csr, nil, schema.GroupVersionKind{}, "", "x",
			certificates.Resource("certificatesigningrequests").WithVersion("v1"), "", apiserver.Create, nil, false, &user.DefaultInfo{Name: "u", Groups: groups}), nil)
	}
	if ask("system:node:there", "system:bootstrappers") == nil {
		t.Error("a bootstrap token gets the certificate of a node that exists")
	}
	if err := ask("system:node:new", "system:bootstrappers"); err != nil {
		t.Errorf("for a new node: %v", err)
	}
	if err := ask("system:node:there", "system:nodes"); err != nil {
		t.Errorf("the node itself, which renews its certificate: %v", err)
	}
}
