package serve

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/bundles"
	"github.com/novox/mesh/embedded/postgres"
)

// store gives the DSN of the records: the named server's, or that of the private cluster, which it starts.
func (h *hub) store(ctx context.Context) (dsn string, end func(), err error) {
	if h.settings.StoreFile != "" {
		dsn, err := ReadDSN(h.settings.StoreFile)
		return dsn, func() {}, err
	}
	if _, err := postgres.MadeBy(Cluster(h.install)); errors.Is(err, os.ErrNotExist) && h.founded() {
		if _, e := postgres.MadeBy(NewCluster(h.install)); e == nil {
			return "", nil, appliance.Errorf(appliance.Conflict, "start store: mesh store upgrade was cut short before its last step: %w", err).WithNext("mesh store upgrade")
		}
		return "", nil, h.gone(fmt.Errorf("there is no %s", filepath.Join(Cluster(h.install), "PG_VERSION")))
	}
	bin, err := Programs(h.install, h.settings)
	if err != nil {
		return "", nil, err
	}
	log, err := StoreLog(h.install)
	if err != nil {
		return "", nil, err
	}
	server, err := postgres.Start(ctx, StoreConfig(bin, Cluster(h.install), filepath.Join(filepath.Dir(Cluster(h.install)), "socket"), log))
	if err != nil {
		log.Close()
		return "", nil, fmt.Errorf("start store: %w", err)
	}
	return server.DSN(), func() {
		if err := server.Close(); err != nil {
			h.log.Error("stop store", "err", err)
		}
		log.Close()
	}, nil
}

// StoreConfig is how a server of the records runs, as the user of this process: nobody but that user and root connects.
func StoreConfig(bin, data, socket string, log io.Writer) postgres.Config {
	return postgres.Config{Bin: bin, Data: data, Socket: socket, Map: map[string]string{UserName(): "mesh", "root": "mesh"}, Superuser: "mesh", Log: log}
}

// StoreLog opens the file into which PostgreSQL speaks.
func StoreLog(i installation.Installation) (io.WriteCloser, error) {
	return openLog(filepath.Join(filepath.Dir(Cluster(i)), "postgresql.log"), maxLog)
}

// OtherMajor is the reason of a store that waits for mesh store upgrade.
const OtherMajor appliance.Reason = "other-major"

// Programs gives the folder of PostgreSQL's programs that may start the private cluster: those of the major that made it (GEN-5).
func Programs(i installation.Installation, s Settings) (string, error) {
	bin, _, err := postgres.FindFor(s.PostgresBin, Cluster(i))
	var wrong *postgres.WrongMajor
	if errors.As(err, &wrong) {
		return "", appliance.Errorf(appliance.Conflict, "start store: %w", err).WithReason(OtherMajor).WithNext("mesh store upgrade").
			WithHint("PostgreSQL starts a cluster only with the major that made it; the upgrade moves the records into a new cluster and keeps the old")
	}
	return bin, err
}

// ReadDSN reads a store file: one line, readable by its owner only, since it may hold a password.
func ReadDSN(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", unreadable(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", appliance.Errorf(appliance.Denied, "read store file %s: others may read it (mode %04o)", path, info.Mode().Perm()).
			WithHint("it may hold a password, so only its owner may read it").WithNext("chmod 600 " + path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", unreadable(err)
	}
	dsn := strings.TrimSpace(string(data))
	if dsn == "" || strings.ContainsAny(dsn, "\r\n") {
		return "", appliance.Errorf(appliance.Invalid, "read store file %s: it holds no single DSN", path).WithHint("one line such as postgres://USER@HOST/DATABASE")
	}
	if err := store.CheckDSN(dsn); err != nil {
		return "", fmt.Errorf("read store file %s: %w", path, err)
	}
	return dsn, nil
}

// ReachStore refuses a store file whose server cannot be reached.
func ReachStore(ctx context.Context, path string) error {
	dsn, err := ReadDSN(path)
	if err != nil {
		return err
	}
	return store.Reach(ctx, dsn)
}

func unreadable(err error) error {
	return appliance.Errorf(appliance.Invalid, "read store file: %w", err).WithHint("--store-file names a file with one line, the DSN of an existing PostgreSQL database")
}

// founded says whether the records were written once. A mesh is founded once: records that are gone must not be taken for a new mesh,
// whose bus would know none of the nodes.
func (h *hub) founded() bool {
	_, err := os.Stat(FoundedFile(h.install))
	return err == nil
}

func (h *hub) gone(why error) error {
	return appliance.Errorf(appliance.NotFound, "the records of mesh %s (%s) are gone: %w", h.settings.Name, h.settings.Mesh, why).
		WithHint("is the disk with the store mounted? bring the store back, or restore a backup; nodes and modules go on meanwhile")
}

// found writes the first records, once; afterwards it finds them.
func (h *hub) found(ctx context.Context, records *store.Store) error {
	if h.founded() {
		if _, err := records.Mesh(ctx); appliance.KindOf(err) == appliance.NotFound {
			return h.gone(err)
		}
	}
	s, public := h.settings, h.keys
	bus, err := public.ControllerBus.PublicKey()
	if err != nil {
		return err
	}
	modulesBus, err := public.ControllerModulesBus.PublicKey()
	if err != nil {
		return err
	}
	signing := public.Signing.Public().(ed25519.PublicKey)
	modules, err := s.BaseModules()
	if err != nil {
		return err
	}
	g := store.Genesis{
		Mesh: store.Mesh{ID: s.Mesh, Name: s.Name, Range: s.Range, OverlayPort: s.Ports.Overlay, Endpoints: s.Endpoints, Signing: signing,
			Sealing: public.Sealing.Recipient().String(), Bus: bus, BusModules: modulesBus, Authority: h.authority.Certificate.Raw},
		Hub: store.Hub{ID: s.Hub.ID, Name: s.Hub.Name, State: h.install.Dir, Address: s.Hub.Address, Keys: s.Hub.Keys, Certificate: s.Hub.Certificate,
			Capabilities: s.Hub.Capabilities},
		Operator: store.Operator{ID: s.Operator.ID, Name: s.Operator.Name, Role: string(operators.Admin), Signing: s.Operator.Signing, Bus: s.Operator.Bus},
		Modules:  modules,
	}
	for _, m := range modules {
		g.Assignments = append(g.Assignments, resolve.Assignment{Instance: appliance.InstanceName(m.Module), Node: s.Hub.ID, Module: m.Module})
	}
	if err := records.Found(ctx, store.By{Who: "genesis", At: time.Now()}, g); err != nil || h.founded() {
		return err
	}
	return durable.WriteFile(FoundedFile(h.install), []byte(s.Mesh+"\n"), 0o600)
}

// StoreModule is the base bundle that brings the private cluster; a hub with an external store does without.
const StoreModule = "mesh-store"

// BaseModules reads the base bundles' manifests, in the order in which they are raised.
func (s Settings) BaseModules() ([]*manifest.Manifest, error) {
	var out []*manifest.Manifest
	for _, b := range bundles.Base() {
		if s.StoreFile != "" && b.Name == StoreModule {
			continue
		}
		m, err := manifest.Parse(b.Manifest)
		if err != nil {
			return nil, fmt.Errorf("read bundle %s: %w", b.Name, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// ByName puts modules into the form that resolve reads.
func ByName(modules []*manifest.Manifest) map[appliance.ModuleName]*manifest.Manifest {
	out := map[appliance.ModuleName]*manifest.Manifest{}
	for _, m := range modules {
		out[m.Module] = m
	}
	return out
}
