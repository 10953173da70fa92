// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/admission/lookup"
)

// informed implements lookups with the API server's own client and informers. Plugins that read
// namespaces, priority classes or runtime classes embed it.
type informed struct {
	*apiserver.Handler
	client kubernetes.Interface
	caches *lookup.Caches
}

var (
	_ initializer.WantsExternalKubeClientSet       = &informed{}
	_ initializer.WantsExternalKubeInformerFactory = &informed{}
	_ apiserver.InitializationValidator            = &informed{}
)

// SetExternalKubeClientSet implements the initializer. Upstream calls it before the other
// initializers.
func (p *informed) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

// SetExternalKubeInformerFactory implements the initializer.
func (p *informed) SetExternalKubeInformerFactory(factory informers.SharedInformerFactory) {
	p.caches = lookup.NewCaches(p.client, factory)
	// WaitForReady calls HasSynced; see await.
	p.SetReadyFunc(p.caches.HasSynced)
}

// ValidateInitialization implements apiserver.InitializationValidator.
func (p *informed) ValidateInitialization() error {
	// Upstream determines the order of the initializers; a change must not pass unnoticed.
	if p.client == nil || p.caches == nil {
		return fmt.Errorf("no client or no informers were provided")
	}
	return nil
}

// await holds the request until the caches have synced, for ten seconds at most. After that it
// rejects the request, because wrong defaults would be permanent.
func (p *informed) await(a apiserver.Attributes) error {
	if !p.WaitForReady() {
		return apiserver.NewForbidden(a, fmt.Errorf("not yet ready to handle request"))
	}
	return nil
}

// isAbout reports whether the request is for an object of that resource, and not for a subresource.
func isAbout(a apiserver.Attributes, resource schema.GroupResource) bool {
	return a.GetSubresource() == "" && a.GetResource().GroupResource() == resource
}
