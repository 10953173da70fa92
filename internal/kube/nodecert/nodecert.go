// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodecert obtains the client certificate of a node like the kubelet, for tests of the
// permissions of nodes.
package nodecert

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"os"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
)

// Obtain requests a certificate for the node with the token of a bootstrap kubeconfig, and writes
// it with its key to a file readable only by this user. The result is a configuration for clients
// that act as the node.
//
// Obtain waits until the request is approved and signed, which kube-controller-manager does for
// bootstrap tokens, or until the context ends.
func Obtain(ctx context.Context, bootstrap, node, file string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", bootstrap)
	if err != nil {
		return nil, err
	}

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}

	keyPEM, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, err
	}

	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, err
	}

	// The subject identifies the client as the node. The API server's node authorizer restricts it
	// to the objects of that node.
	request, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, nil, nil)
	if err != nil {
		return nil, err
	}

	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "",
		certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, key)
	if err != nil {
		return nil, err
	}

	certificate, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return nil, fmt.Errorf("certificate of node %s: %w", node, err)
	}
	if err := os.WriteFile(file, append(certificate, keyPEM...), 0o600); err != nil {
		return nil, err
	}

	// The bootstrap token is removed, because the client must act only as the node.
	own := rest.AnonymousClientConfig(config)
	own.CertFile, own.KeyFile = file, file
	return own, nil
}
