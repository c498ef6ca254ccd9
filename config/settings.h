// The parts of the table of settings, one for each section of the Config. To add a setting: a field
// in config/config.h, an Add in its section's settings_*.cc, then `make docs`. Pure functions.
#pragma once

#include "config/config.h"

namespace aisp {

void BindModelSettings(Config::Model& m, SettingTable& t);
void BindHttpSettings(Config::Http& h, SettingTable& t);
void BindRouterSettings(Config::Router& r, SettingTable& t);
void BindClusterSettings(ClusterOptions& c, SettingTable& t);
void BindWorkerSettings(Config::Worker& w, SettingTable& t);
void BindEngineSettings(Config::Engine& e, SettingTable& t);
void BindKvSettings(Config::Kv& k, SettingTable& t);

}  // namespace aisp
