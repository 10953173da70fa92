// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admissionplugin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/pkg/apis/certificates"
)

// BootstrapName is the name of the plugin for requests of node certificates.
const BootstrapName = "BerthNodeBootstrap"

// bootstraps rejects requests made with a bootstrap token for the certificate of an existing node.
// Otherwise, the token would give access to that node's identity, including the secrets of its
// pods, as kubeadm's tokens do. A deleted node may be bootstrapped again.
type bootstraps struct {
	*apiserver.Handler
	client kubernetes.Interface
}

var (
	_ apiserver.ValidationInterface          = &bootstraps{}
	_ initializer.WantsExternalKubeClientSet = &bootstraps{}
	_ apiserver.InitializationValidator      = &bootstraps{}
)

// NewBootstrap returns the plugin for requests of node certificates.
func NewBootstrap() apiserver.Interface {
	return &bootstraps{Handler: apiserver.NewHandler(apiserver.Create)}
}

// SetExternalKubeClientSet implements the initializer.
func (p *bootstraps) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

// ValidateInitialization implements apiserver.InitializationValidator.
func (p *bootstraps) ValidateInitialization() error {
	if p.client == nil {
		return fmt.Errorf("no client was provided")
	}
	return nil
}

// Validate implements apiserver.ValidationInterface. It reads the node from the API server rather
// than from a possibly stale cache, because such requests are rare.
func (p *bootstraps) Validate(ctx context.Context, a apiserver.Attributes, _ apiserver.ObjectInterfaces) error {
	if !isAbout(a, certificates.Resource("certificatesigningrequests")) ||
		// All bootstrap tokens are in this group, including kubeadm's.
		!slices.Contains(a.GetUserInfo().GetGroups(), bootstrapapi.BootstrapDefaultGroup) {
		return nil
	}
	request, ok := a.GetObject().(*certificates.CertificateSigningRequest)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected *certificates.CertificateSigningRequest but got %T", a.GetObject()))
	}
	asked, err := certificates.ParseCSR(request.Spec.Request)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	name, isNode := strings.CutPrefix(asked.Subject.CommonName, "system:node:")
	if !isNode {
		return nil // the signer does not sign such requests
	}
	_, err = p.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	// Any other error also rejects the request, since the node may exist.
	if err == nil {
		err = fmt.Errorf("node %s exists, and a bootstrap token is for new nodes: delete the node first", name)
	}
	return apiserver.NewForbidden(a, err)
}
