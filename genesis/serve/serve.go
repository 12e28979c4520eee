package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/artifactstore"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/controller"
	"github.com/novox/mesh/appliance/downloads"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/embedded/natsd"
)

// hub is the running process.
type hub struct {
	install   installation.Installation
	settings  Settings
	keys      identity.MeshKeys
	authority *pki.Authority
	downloads *downloads.Server
	artifacts *artifactstore.Store
	key       *ecdsa.PrivateKey // of the download server
	broker    *natsd.Server
	link      *bus.Link // the controller's; it outlives restarts of broker and store
	keeper    *keeper
	revoked   *revoked
	log       *slog.Logger
}

// Run is the hub's process. The broker stands first and stays, whatever becomes of the store: nodes remain connected and their reports
// wait (GEN-8). The rest is tried again until ctx ends.
func Run(ctx context.Context, install installation.Installation, log *slog.Logger) error {
	h, err := open(install, log)
	if err != nil {
		return err
	}
	release, err := installation.Hold(LockFile(install), "mesh serve")
	if err != nil {
		return err
	}
	defer release()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // the broker's: its clients know the name and the authority
	if err != nil {
		return err
	}
	broker, err := h.certificate(key, pki.BrokerName(h.settings.Mesh))
	if err != nil {
		return err
	}
	forDownloads, err := h.certificate(h.key, pki.DownloadsName(h.settings.Mesh))
	if err != nil {
		return err
	}
	h.keeper = newKeeper(Streams(install), h.settings.ballast(install), log.With("part", "disk"))
	h.broker, err = natsd.Start(natsd.Config{Name: pki.BrokerName(h.settings.Mesh), Host: "0.0.0.0", Port: int(h.settings.Ports.Broker), StoreDir: Streams(install),
		Users: UsersFile(install), TLS: h.tls(broker), Logger: log.With("part", "broker"), Wrong: h.keeper.tell})
	if err != nil {
		return fmt.Errorf("start broker: %w", err)
	}
	defer h.broker.Close()
	h.link, err = bus.Connect(ctx, bus.Options{InProcess: h.broker.InProcess(), User: wire.ControllerUser, Key: h.keys.ControllerBus, Logger: log.With("part", "bus")})
	if err != nil {
		return err
	}
	defer h.link.Close()
	h.keeper.broker, h.keeper.probe = h.broker, func(ctx context.Context) error { return bus.Probe(ctx, h.link) }
	forArtifacts, err := h.artifactsTLS(key)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("0.0.0.0", strconv.Itoa(int(h.settings.Ports.Downloads))))
	if err != nil {
		return fmt.Errorf("start downloads: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return h.downloads.Serve(ctx, listener, h.tls(forDownloads))
	})
	g.Go(func() error { h.keepServingArtifacts(ctx, forArtifacts); return nil })
	g.Go(func() error { h.keeper.run(ctx); return nil })
	g.Go(func() error { return h.keepControlling(ctx) })
	return g.Wait()
}

func open(install installation.Installation, log *slog.Logger) (*hub, error) {
	h := &hub{install: install, log: log}
	var err error
	if h.settings, err = ReadSettings(install); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, appliance.Errorf(appliance.NotFound, "serve: there is no hub in %s", install.Dir).WithNext("mesh genesis --name NAME --endpoint HOST")
		}
		return nil, err
	}
	if h.keys, err = identity.LoadMesh(install.HubKeys()); err != nil {
		return nil, err
	}
	der, err := ReadAuthority(install)
	if err != nil {
		return nil, err
	}
	if h.authority, err = pki.LoadAuthority(h.settings.Mesh, der, h.keys.Authority); err != nil {
		return nil, err
	}
	h.revoked = &revoked{file: MembershipFile(install), mesh: h.settings.Mesh, signing: h.keys.Signing.Public().(ed25519.PublicKey), log: log}
	if err := h.revoked.load(); err != nil { // the controller brings it again
		log.Error("read the kept membership", "err", err)
	}
	if h.key, err = identity.ServerKey(install.HubKeys(), "downloads"); err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, architecture := range wire.Architectures {
		files[architecture] = install.BinaryFor(architecture)
	}
	h.artifacts = h.newArtifacts()
	h.downloads, err = downloads.New(h.settings.Ports.Downloads, &h.key.PublicKey, files)
	return h, err
}

// ReadAuthority reads the authority's certificate, DER.
func ReadAuthority(install installation.Installation) ([]byte, error) {
	text, err := os.ReadFile(AuthorityFile(install))
	if err != nil {
		return nil, err
	}
	return pki.DecodePEM(text)
}

// tls is the configuration of each of the hub's servers: who shows a certificate must have one that the authority made and nobody revoked.
func (h *hub) tls(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return pki.ServerTLS(certificate, h.authority.Certificate, h.revoked.has, pki.Clock(nil))
}

// certificate makes that of one of the hub's servers, at every start, under its fixed name (PKI-6).
func (h *hub) certificate(key *ecdsa.PrivateKey, name string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	return h.issue(pki.Request{Public: &key.PublicKey, Names: []string{name}, Usage: pki.Server}, key)
}

func (h *hub) issue(r pki.Request, key *ecdsa.PrivateKey) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	r.Now = time.Now()
	leaf, err := h.authority.Issue(r)
	if err != nil {
		return nil, err
	}
	chain, err := pki.Chain(leaf, h.authority.Certificate.Raw, key)
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return chain, err }, err
}

// keepControlling runs store and controller again and again; each end is told, and tried again after a pause that grows to 10 s.
func (h *hub) keepControlling(ctx context.Context) error {
	pause := 250 * time.Millisecond
	for {
		begun := time.Now()
		err := h.control(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begun) > time.Minute {
			pause = 250 * time.Millisecond
		}
		h.log.Error("controller ended, starting again", "in", pause, "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// control brings up the store, founds the mesh where that has not happened, and controls it.
func (h *hub) control(ctx context.Context) error {
	dsn, closeStore, err := h.store(ctx)
	if err != nil {
		return err
	}
	defer closeStore()
	records, err := store.Open(ctx, store.Config{DSN: dsn})
	if err != nil {
		return err
	}
	defer records.Close()
	if err := records.CheckDurable(ctx); err != nil { // GEN-9
		return err
	}
	if err := h.found(ctx, records); err != nil {
		return err
	}
	return controller.Run(ctx, controller.Config{Store: records, Link: h.link, Keys: h.keys, Authority: h.authority, SetUsers: h.setUsers(ctx), Published: h.revoked.take, Warnings: h.keeper.warnings,
		Downloads: h.downloads, Artifacts: h.artifacts, Log: h.log.With("part", "controller")})
}

// returnWithin is how long the controller may be away after new bus users before the previous ones come back (BUS-1).
const returnWithin = 30 * time.Second

// setUsers applies a users file and puts the previous one back unless the controller is, or comes back, connected.
func (h *hub) setUsers(ctx context.Context) func([]byte) error {
	return func(file []byte) error {
		if err := h.broker.SetUsers(file); err != nil {
			return err
		}
		if h.link.Status().Connected {
			return nil
		}
		go func() {
			for end := time.Now().Add(returnWithin); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				if ctx.Err() != nil || h.link.Status().Connected {
					return
				}
			}
			h.log.Error("the controller did not return after new bus users: the previous ones are put back")
			if err := h.broker.Restore(); err != nil {
				h.log.Error("restore bus users", "err", err)
			}
		}()
		return nil
	}
}
