// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
)

// This file lets machines join the cluster as nodes: a machine requests a node certificate with a
// bootstrap token, upstream's controllers approve and sign it, and the machine renews it with the
// node's identity.

const (
	// nodeBootstrapFile is a kubeconfig that only permits a machine to request a node certificate.
	nodeBootstrapFile = "node-bootstrap.kubeconfig"
	// nodeBootstrapLife is the token's lifetime; the next start writes another.
	nodeBootstrapLife = 24 * time.Hour
	// bootstrappers is the group of users with a bootstrap token.
	bootstrappers = bootstrapapi.BootstrapDefaultGroup + ":berth"

	// kubeletClientUser is the user name in the API server's requests to kubelets.
	kubeletClientUser = "kube-apiserver-kubelet-client"
)

// identityBindings lets machines become nodes, nodes renew their certificates, and the API server
// access nodes. Upstream's approving and signing controllers decide which certificates are issued.
// The role names are upstream's.
func identityBindings() []rbacv1.ClusterRoleBinding {
	bind := bindClusterRole
	return []rbacv1.ClusterRoleBinding{
		bind("berth:node-bootstrapper", "system:node-bootstrapper", rbacv1.GroupKind, bootstrappers),
		bind("berth:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
			rbacv1.GroupKind, bootstrappers),
		bind("berth:node-autoapprove-renewal", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
			rbacv1.GroupKind, user.NodesGroup),
		bind("berth:kubelet-api-admin", "system:kubelet-api-admin", rbacv1.UserKind, kubeletClientUser),
	}
}

// bindClusterRole binds a cluster role to one user or group.
func bindClusterRole(name, role, kind, subject string) rbacv1.ClusterRoleBinding {
	return rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: subject}},
	}
}

// writeNodeBootstrap creates a bootstrap token and writes its kubeconfig at every start. Tokens of
// earlier starts expire; the token cleaner deletes them. The kubeconfig contains only the token,
// without a user name.
func (c *controlPlane) writeNodeBootstrap(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.api.loopbackConfig())
	if err != nil {
		return err
	}

	token, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return err
	}
	id, secret, _ := strings.Cut(token, ".")

	// As in kubeadm, the token is a Secret in kube-system, where the API server looks it up.
	_, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: bootstrapapi.BootstrapTokenSecretPrefix + id},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey:               id,
			bootstrapapi.BootstrapTokenSecretKey:           secret,
			bootstrapapi.BootstrapTokenExpirationKey:       time.Now().Add(nodeBootstrapLife).UTC().Format(time.RFC3339),
			bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			// This group is in addition to the default group of bootstrap tokens, which has no
			// permissions here.
			bootstrapapi.BootstrapTokenExtraGroupsKey: bootstrappers,
			bootstrapapi.BootstrapTokenDescriptionKey: "for nodes of berth up",
		},
	}, metav1.CreateOptions{})

	if err != nil {
		return fmt.Errorf("bootstrap token: %w", err)
	}
	// Unlike a certificate, the token does not name a node.
	kubeconfig := c.pki.kubeconfigWith(c.server, &clientcmdapi.AuthInfo{Token: token})
	if err := waitBootstrapToken(ctx, kubeconfig); err != nil {
		return fmt.Errorf("bootstrap token: %w", err)
	}
	return c.writeKubeconfig(nodeBootstrapFile, kubeconfig)
}

// waitBootstrapToken waits until the API server, which watches tokens and bindings, lets the
// kubeconfig's user request certificates.
func waitBootstrapToken(ctx context.Context, kubeconfig *clientcmdapi.Config) error {
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}

	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "create", Group: certificatesv1.GroupName, Resource: "certificatesigningrequests",
		},
	}}
	return wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if apierrors.IsUnauthorized(err) {
			return false, nil
		}
		return err == nil && answer.Status.Allowed, err
	})
}
