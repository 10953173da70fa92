// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/jsonpath"
)

// objects reads objects of any kind, named as for kubectl get. It replaces kubectl, because tests
// poll many times a second, and a process for each read would take more CPU than the code under
// test.
type objects struct {
	kinds  meta.RESTMapper
	client dynamic.Interface
}

// objectsOf returns a reader for the cluster of a data directory.
func objectsOf(dataDir string, client kubernetes.Interface) (*objects, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	o := &objects{}
	if o.client, err = dynamic.NewForConfig(cfg); err != nil {
		return nil, err
	}
	known := memory.NewMemCacheClient(client.Discovery())
	o.kinds = restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(known), known, nil)
	return o, nil
}

// get returns the object with a name such as pod/name, in the namespace default if it is
// namespaced, or nil if it does not exist.
func (o *objects) get(object string) (*unstructured.Unstructured, error) {
	resource, name, _ := strings.Cut(object, "/")
	kind, err := o.kinds.KindFor(schema.GroupVersionResource{Resource: resource})
	if err != nil {
		return nil, err
	}
	mapping, err := o.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	var from dynamic.ResourceInterface = o.client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		from = o.client.Resource(mapping.Resource).Namespace(metav1.NamespaceDefault)
	}
	found, err := from.Get(background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return found, err
}

// get returns a field of an object of the shared cluster, like kubectl get -o jsonpath. It returns
// "" if the object or field does not exist or cannot be read.
func get(t *testing.T, object, path string) string {
	t.Helper()
	template := jsonpath.New(object).AllowMissingKeys(true)
	if err := template.Parse(path); err != nil {
		t.Fatal(err)
	}
	found, err := shared.objects.get(object)
	if err != nil {
		t.Logf("%s: %v", object, err)
	}
	if err != nil || found == nil {
		return ""
	}
	var text strings.Builder
	if err := template.Execute(&text, found.Object); err != nil {
		t.Logf("%s: %v", object, err)
		return ""
	}
	return text.String()
}
